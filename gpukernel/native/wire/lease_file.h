// What a program under the shim finds of its slice: the file that GPUKERNEL_LEASE_FILE names.  Its format is
// that of gpukernel/remoting/environment.py, which writes it.
#pragma once

#include <string>
#include <vector>

namespace gpukernel::wire {

struct LeaseFile {
    std::string lease, state;
    std::string secret;
    std::string driver;                             // in direct mode: the full path of the real libcuda.so.1
    std::vector<std::vector<std::string>> devices;  // in CUDA order: the endpoints of each, best first
    std::string desk, key;  // who keeps this kernel's slice, and under what name; empty where nobody does
};

// False, and `error` says why, where the file cannot be read or its lease is not live; `lease` has what the
// file says even then.
bool read_lease_file(const char* path, LeaseFile& lease, std::string& error);

}  // namespace gpukernel::wire
