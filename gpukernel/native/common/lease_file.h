// The lease file, which GPUKERNEL_LEASE_FILE names: what a program under one of the libraries finds of its
// slice.  gpukernel/remoting/lease_file.py writes it and says what is in it; this reads versions 1 and 2.
#pragma once

#include <string>
#include <vector>

namespace gpukernel::wire {

struct LeaseFile {
    std::string lease, state;
    std::string secret;
    std::string driver;                             // in direct mode: the full path of the real libcuda.so.1
    std::vector<std::vector<std::string>> devices;  // in CUDA order: the endpoints of each, best first
    std::string socket, kernel;  // where this kernel's slice is asked for, and its key; empty for a program
    std::string reason;          // why there is no slice
};

// False, and `error` says why, where the file cannot be read, is cut off, has a version that is not known
// here, or its lease is not live; in the last case `lease` has what the file says, else it is as it was.
bool read_lease_file(const char* path, LeaseFile& lease, std::string& error);

// The same for the file that GPUKERNEL_LEASE_FILE names; false, and nothing else, where it is not set.
// "slurm:FOLDER" names the file of the Slurm job that this process is of, FOLDER/NODE/jobs/JOB/lease: where
// it is not there yet, `lease` says where the slice is asked for.
bool find_lease(LeaseFile& lease, std::string& error);

// Whether `lease`, which `find_lease` found, is that of a Slurm job and can be asked for.
bool lease_of_job(const LeaseFile& lease);

}  // namespace gpukernel::wire
