// A thread-local variable with a fixed place in each thread, which costs one load at every use.
#pragma once

// Others of a library that a program may open later are found by a call, are initialised by a second one
// where another file defines them, and may be allocated at their first use, which a signal handler must not
// do.  A library's variables of this kind come out of 1.6 KiB that the C library keeps for all of a program's
// libraries, so they are few and small.
#define GPUKERNEL_STATIC_THREAD_LOCAL constinit thread_local __attribute__((tls_model("initial-exec")))
