// What libraries of frameworks in this process are told of a slice, by their own documented variables.
#pragma once

namespace gpukernel::shim {

// XLA, TensorFlow's and JAX's, measures each candidate for a kernel behind one that waits until the program
// writes a word of pinned memory.  On a slice the program's touch of that word waits for the kernel (decision
// 0018), which gives up after 100 ms: hundreds of times where a network is compiled.  With
// CUDA_LAUNCH_BLOCKING=1 XLA leaves that kernel out; a slice's launches do not heed the variable.  It is set
// where such a library is loaded, unless the user has set it: other programs and what they start have no need
// of it.
void tell_frameworks();

}  // namespace gpukernel::shim
