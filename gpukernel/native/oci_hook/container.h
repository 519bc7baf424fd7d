// The file system in memory that the CDI file mounts in a container for its lease file, seen from outside
// before the container's program starts.
#pragma once

#include <string>

namespace gpukernel::oci_hook {

// Where the container sees it.
constexpr char LEASE_FOLDER[] = "/run/gpukernel";

// Descriptors of that folder, and of the container's root, which is -1 where its path is not known: an
// image's links may give the folder another one.
struct Folders {
    int lease = -1, root = -1;
};

// Opens them in the mounts of the process `pid`; `trouble` says why where the folder is not there.
Folders open_folders(int pid, std::string& trouble);

// Puts a socket there, on which the container's programs ask for their slice, and a lease file that names
// it.  Returns the socket, which listens; -1, and `trouble` says why, where that fails.
int offer_lease(int folder, std::string& trouble);

}  // namespace gpukernel::oci_hook
