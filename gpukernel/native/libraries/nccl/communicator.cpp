#include "libraries/nccl/communicator.h"

namespace gpukernel::libraries::nccl {

Communicators& communicators() {
    static Communicators* const instance = new Communicators;  // threads may be inside at exit
    return *instance;
}
bool lives(Communicator* communicator) {
    std::lock_guard lock(communicators().mutex);
    return communicators().living.contains(communicator);
}

namespace {
// Frameworks end their communicators while the process ends, when what a thread had is destroyed already: so
// it is nothing that is destroyed.
thread_local char last_error[256];
}  // namespace
int refuse(Status status, const std::string& sentence) {
    last_error[sentence.copy(last_error, sizeof last_error - 1)] = 0;
    complain(sentence);
    return status;
}
int outcome(CUresult result, const char* what) {
    if (result == CUDA_SUCCESS) return SUCCESS;
    return refuse(CUDA_ERROR,
                  "NCCL: " + std::string(what) + ": CUDA error " + std::to_string(static_cast<int>(result)));
}
const char* last_refusal() { return last_error; }

}  // namespace gpukernel::libraries::nccl
