// The program's SIGSEGV: those of managed pages are served, every other goes where it would have gone.
#pragma once

namespace gpukernel::shim {

// Sees to it that faults come here first, also where the program has installed a handler of its own since.
void watch_faults();

}  // namespace gpukernel::shim
