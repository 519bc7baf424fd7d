// What an image can load, told from its files before its program starts.
#pragma once

#include <string>

namespace gpukernel::oci_hook {

// Why programs below the folder that `root` is a descriptor of cannot load a slice's libraries, in a
// sentence; empty where they can, or where it cannot be told.
std::string image_trouble(int root);

}  // namespace gpukernel::oci_hook
