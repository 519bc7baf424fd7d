// A rank's part in what several ranks do together (clique.h): what it gives is read from its device, and what
// it gets is written there, in the order of its stream.
#pragma once

#include <vector>

#include "libraries/nccl/communicator.h"

namespace gpukernel::libraries::nccl {

// It has parts of its communicator, which another thread may abort.
struct Part {
    enum Way { TOGETHER, SEND, RECEIVE } way;
    Communicator communicator;
    Question question;  // of it the root is who is sent to, or received from
    const void* from;
    void* to;
    CUstream stream;
    Communicator** divided;  // a split's result
    int color, key;
    uint64_t number = 0;  // of the collective, once the rank has given its part
};

// All give before one waits, since the ranks of a group may be of one thread.
int finish(std::vector<Part> parts);

}  // namespace gpukernel::libraries::nccl
