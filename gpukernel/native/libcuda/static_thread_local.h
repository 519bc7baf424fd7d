// A thread-local variable with a fixed place in each thread, which costs one load at every use.
#pragma once

// Others of a library that a program may open later are found by a call, are initialised by a second one
// where another file defines them, and may be allocated at their first use, which a signal handler must not
// do.  A library that has one of this kind gets the room for all its thread-local variables when it is
// opened, out of 1.6 KiB that the C library keeps for everything that a program opens:
// tests/native/test_thread_local.py says how much.
#define GPUKERNEL_STATIC_THREAD_LOCAL constinit thread_local __attribute__((tls_model("initial-exec")))
