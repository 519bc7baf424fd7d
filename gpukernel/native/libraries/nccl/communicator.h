// Communicators of NCCL, what they answer, and the calls of the driver that are made for them.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "libraries/library.h"
#include "libraries/nccl/clique.h"

namespace gpukernel::libraries::nccl {

enum Status {
    SUCCESS = 0,
    CUDA_ERROR = 1,
    SYSTEM_ERROR = 2,
    INVALID_ARGUMENT = 4,
    INVALID_USAGE = 5,
    REMOTE_ERROR = 6
};

// A rank: on a device, alone or in a clique.
struct Communicator {
    CUcontext context;
    CUdevice device;
    int rank = 0;
    std::shared_ptr<Clique> clique;  // or none, where the rank is alone
    int ranks() const { return clique ? static_cast<int>(clique->size()) : 1; }
};

struct Communicators {
    std::mutex mutex;
    std::set<Communicator*> living;
    std::map<std::string, std::shared_ptr<Clique>> gathering;  // by identity, until all ranks are there
};
Communicators& communicators();
bool lives(Communicator* communicator);

// Keeps and prints the sentence, and returns the status.
int refuse(Status status, const std::string& sentence);
int outcome(CUresult result, const char* what);  // of calls of the driver
const char* last_refusal();                      // of this thread

template <class... Arguments, class... Given>
CUresult call(CUresult (*)(Arguments...), const char* name, Given... given) {
    auto* const function = driver_function<CUresult(Arguments...)>(name);
    return function ? function(given...) : CUDA_ERROR_NOT_INITIALIZED;
}
#define DRIVER(function, ...) call(static_cast<decltype(&function)>(nullptr), #function, __VA_ARGS__)

// Makes the communicator's context current while it lives.
class Current {
  public:
    explicit Current(const Communicator& communicator)
        : result(DRIVER(cuCtxPushCurrent_v2, communicator.context)) {}
    ~Current() {
        CUcontext popped;
        if (result == CUDA_SUCCESS) DRIVER(cuCtxPopCurrent_v2, &popped);
    }
    const CUresult result;
};

}  // namespace gpukernel::libraries::nccl
