// NCCL in the user's program, with one rank: a slice's programs have one device, and processes of theirs that
// would talk to each other may be on different servers.  A collective of one rank is a copy in its stream's
// order, which the driver makes; a communicator is a number.  More ranks are refused in a sentence.
#include <sys/random.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "libraries/library.h"

namespace gpukernel::libraries {
const int NOT_SUPPORTED_STATUS = 5;  // ncclInvalidUsage: NCCL has no status for what is not there
}

namespace gpukernel::libraries::nccl {

namespace {
// The last release before windows and communicators of the device, of which there is nothing here.
constexpr int VERSION = 22605;

enum Status { SUCCESS = 0, CUDA_ERROR = 1, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };

struct UniqueId {
    char bytes[128];
};
struct Communicator {
    CUcontext context;
    CUdevice device;
};

struct Communicators {
    std::mutex mutex;
    std::set<Communicator*> living;
};
Communicators& communicators() {
    static Communicators* const instance = new Communicators;  // threads may be inside at exit
    return *instance;
}
bool lives(Communicator* communicator) {
    std::lock_guard lock(communicators().mutex);
    return communicators().living.contains(communicator);
}

// Frameworks end their communicators while the process ends, when what a thread had is destroyed already: so
// it is nothing that is destroyed.
thread_local char last_error[256];
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

constexpr size_t BYTES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};  // of ncclInt8 … ncclFloat8e5m2
constexpr int TYPES = sizeof BYTES / sizeof *BYTES, OPERATIONS = 5;

struct Copy {
    enum Kind { ALONE, SEND, RECEIVE } kind;
    Communicator* communicator;
    const void* from;
    void* to;
    size_t bytes;
    CUstream stream;
};

// What a thread has asked for between ncclGroupStart and the outermost ncclGroupEnd.
struct Group {
    int depth = 0, status = SUCCESS;
    std::vector<Copy> copies;
};
thread_local Group* group = nullptr;

CUresult made(const Copy& copy, CUstream sender) {
    if (!copy.bytes || copy.from == copy.to) return CUDA_SUCCESS;
    const Current current(*copy.communicator);
    if (current.result != CUDA_SUCCESS) return current.result;
    const auto to = reinterpret_cast<CUdeviceptr>(copy.to), from = reinterpret_cast<CUdeviceptr>(copy.from);
    if (sender == copy.stream) return DRIVER(cuMemcpyAsync, to, from, copy.bytes, copy.stream);
    // What was sent waits for one stream, arrives in another, and must not change before it has.
    CUevent event;
    if (CUresult error = DRIVER(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING); error != CUDA_SUCCESS)
        return error;
    CUresult result = DRIVER(cuEventRecord, event, sender);
    if (result == CUDA_SUCCESS) result = DRIVER(cuStreamWaitEvent, copy.stream, event, 0);
    if (result == CUDA_SUCCESS) result = DRIVER(cuMemcpyAsync, to, from, copy.bytes, copy.stream);
    if (result == CUDA_SUCCESS) result = DRIVER(cuEventRecord, event, copy.stream);
    if (result == CUDA_SUCCESS) result = DRIVER(cuStreamWaitEvent, sender, event, 0);
    DRIVER(cuEventDestroy_v2, event);
    return result;
}

// Makes a group's copies; what is sent meets what is received in the order of the calls.
int finish(std::vector<Copy> copies) {
    std::vector<bool> done(copies.size());
    for (size_t i = 0; i < copies.size(); ++i) {
        if (done[i]) continue;
        Copy copy = copies[i];
        CUstream sender = copy.stream;
        if (copy.kind != Copy::ALONE) {
            const Copy::Kind wanted = copy.kind == Copy::SEND ? Copy::RECEIVE : Copy::SEND;
            size_t j = i + 1;
            while (j < copies.size() &&
                   (done[j] || copies[j].kind != wanted || copies[j].communicator != copy.communicator))
                ++j;
            if (j == copies.size())
                return refuse(INVALID_USAGE,
                              copy.kind == Copy::SEND
                                  ? "NCCL: what a rank sends to itself it must receive in the same group"
                                  : "NCCL: what a rank receives from itself it must send in the same group");
            const Copy& sent = copy.kind == Copy::SEND ? copies[i] : copies[j];
            const Copy& received = copy.kind == Copy::SEND ? copies[j] : copies[i];
            if (sent.bytes != received.bytes)
                return refuse(INVALID_USAGE, "NCCL: " + std::to_string(sent.bytes) + " bytes are sent, and " +
                                                 std::to_string(received.bytes) + " received");
            sender = sent.stream;
            copy = received;
            copy.from = sent.from;
            done[j] = true;
        }
        if (int status = outcome(made(copy, sender), "a copy")) return status;
    }
    return SUCCESS;
}

int ended(int status) {  // a call, perhaps within a group, which remembers that it failed
    if (status && group) group->status = status;
    return status;
}

// One collective, of which the only rank sends and receives the same number of elements.
int collective(Copy::Kind kind, const void* from, void* to, size_t count, int type,
               Communicator* communicator, CUstream stream, int root = 0, int operation = 0) {
    if (!lives(communicator)) return ended(refuse(INVALID_ARGUMENT, "NCCL: this is no communicator"));
    if (type < 0 || type >= TYPES)
        return ended(refuse(INVALID_ARGUMENT, "NCCL: there is no type " + std::to_string(type)));
    if (operation < 0 || operation >= OPERATIONS)
        return ended(refuse(INVALID_ARGUMENT, "NCCL: there is no operation " + std::to_string(operation)));
    if (root != 0)
        return ended(
            refuse(INVALID_ARGUMENT, "NCCL: there is no rank " + std::to_string(root) + " among one"));
    if (count > SIZE_MAX / BYTES[type]) return ended(refuse(INVALID_ARGUMENT, "NCCL: too many elements"));
    const Copy copy{kind, communicator, from, to, count * BYTES[type], stream};
    if (group) {
        group->copies.push_back(copy);
        return SUCCESS;
    }
    return finish({copy});
}

// A communicator of the rank 0 on the current device, or where there is none yet on the first.
int create(Communicator** place, int ranks, int rank, const int* ordinal = nullptr) {
    if (!place || ranks < 1 || rank < 0 || rank >= ranks)
        return ended(refuse(INVALID_ARGUMENT, "NCCL: there is no rank " + std::to_string(rank) + " among " +
                                                  std::to_string(ranks)));
    *place = nullptr;
    if (ranks > 1)
        return ended(refuse(INVALID_USAGE, "NCCL on a slice has one rank, and " + std::to_string(ranks) +
                                               " were asked for: let one process train on one device"));
    auto own = std::make_unique<Communicator>();
    CUresult result = DRIVER(cuInit, 0);
    own->context = nullptr;
    if (result == CUDA_SUCCESS && !ordinal) result = DRIVER(cuCtxGetCurrent, &own->context);
    if (result == CUDA_SUCCESS && own->context) {
        result = DRIVER(cuCtxGetDevice, &own->device);
    } else if (result == CUDA_SUCCESS) {
        result = DRIVER(cuDeviceGet, &own->device, ordinal ? *ordinal : 0);
        if (result == CUDA_SUCCESS) result = DRIVER(cuDevicePrimaryCtxRetain, &own->context, own->device);
    }
    if (result != CUDA_SUCCESS) return ended(outcome(result, "a communicator's device"));
    std::lock_guard lock(communicators().mutex);
    communicators().living.insert(*place = own.release());
    return SUCCESS;
}

int end(Communicator* communicator) {
    std::lock_guard lock(communicators().mutex);
    if (!communicators().living.erase(communicator))
        return refuse(INVALID_ARGUMENT, "NCCL: this is no communicator");
    delete communicator;
    return SUCCESS;
}
}  // namespace

// Defines a function and its name for profilers.
#define NCCL(result, name, ...)                                                 \
    GPUKERNEL_EXPORT result p##name(__VA_ARGS__) __attribute__((alias(#name))); \
    GPUKERNEL_EXPORT result name(__VA_ARGS__)

NCCL(int, ncclGetVersion, int* version) {
    if (!version) return INVALID_ARGUMENT;
    *version = VERSION;
    return SUCCESS;
}

NCCL(int, ncclGetUniqueId, UniqueId* id) {
    if (!id) return INVALID_ARGUMENT;
    const bool drawn = ::getrandom(id->bytes, sizeof id->bytes, 0) == static_cast<ssize_t>(sizeof id->bytes);
    return drawn ? SUCCESS : SYSTEM_ERROR;
}

NCCL(const char*, ncclGetErrorString, int status) {
    switch (status) {
        case SUCCESS:
            return "no error";
        case CUDA_ERROR:
            return "unhandled cuda error";
        case SYSTEM_ERROR:
            return "unhandled system error";
        case INVALID_ARGUMENT:
            return "invalid argument";
        case INVALID_USAGE:
            return "invalid usage";
        default:
            return "unknown result code";
    }
}
NCCL(const char*, ncclGetLastError, Communicator*) { return last_error; }
NCCL(void, ncclResetDebugInit) {}

NCCL(int, ncclMemAlloc, void** pointer, size_t bytes) {
    if (!pointer) return INVALID_ARGUMENT;
    CUdeviceptr address = 0;
    const int status = outcome(DRIVER(cuMemAlloc_v2, &address, bytes), "ncclMemAlloc");
    *pointer = reinterpret_cast<void*>(address);
    return status;
}
NCCL(int, ncclMemFree, void* pointer) {
    return pointer ? outcome(DRIVER(cuMemFree_v2, reinterpret_cast<CUdeviceptr>(pointer)), "ncclMemFree")
                   : SUCCESS;
}

NCCL(int, ncclCommInitRank, Communicator** place, int ranks, UniqueId, int rank) {
    return create(place, ranks, rank);
}
NCCL(int, ncclCommInitRankConfig, Communicator** place, int ranks, UniqueId, int rank, void*) {
    return create(place, ranks, rank);
}
NCCL(int, ncclCommInitRankScalable, Communicator** place, int ranks, int rank, int, UniqueId*, void*) {
    return create(place, ranks, rank);
}
NCCL(int, ncclCommInitAll, Communicator** place, int ranks, const int* ordinals) {
    const int first = 0;
    return create(place, ranks, 0, ordinals ? ordinals : &first);
}
NCCL(int, ncclCommSplit, Communicator* communicator, int color, int, Communicator** place, void*) {
    if (!place || !lives(communicator) || color < -1) return ended(INVALID_ARGUMENT);
    *place = nullptr;
    if (color == -1) return SUCCESS;  // NCCL_SPLIT_NOCOLOR: it will be in none
    const std::lock_guard lock(communicators().mutex);
    communicators().living.insert(*place = new Communicator(*communicator));
    return SUCCESS;
}

NCCL(int, ncclCommFinalize, Communicator* communicator) {
    return lives(communicator) ? SUCCESS : INVALID_ARGUMENT;
}
NCCL(int, ncclCommDestroy, Communicator* communicator) { return communicator ? end(communicator) : SUCCESS; }
NCCL(int, ncclCommAbort, Communicator* communicator) { return communicator ? end(communicator) : SUCCESS; }
NCCL(int, ncclCommGetAsyncError, Communicator* communicator, int* error) {
    if (!lives(communicator) || !error) return INVALID_ARGUMENT;
    *error = SUCCESS;
    return SUCCESS;
}
NCCL(int, ncclCommCount, Communicator* communicator, int* count) {
    if (!lives(communicator) || !count) return INVALID_ARGUMENT;
    *count = 1;
    return SUCCESS;
}
NCCL(int, ncclCommCuDevice, Communicator* communicator, int* device) {
    if (!lives(communicator) || !device) return INVALID_ARGUMENT;
    *device = communicator->device;
    return SUCCESS;
}
NCCL(int, ncclCommUserRank, Communicator* communicator, int* rank) {
    if (!lives(communicator) || !rank) return INVALID_ARGUMENT;
    *rank = 0;
    return SUCCESS;
}
// A copy within a device has nothing to prepare.
NCCL(int, ncclCommRegister, Communicator* communicator, void* memory, size_t, void** handle) {
    if (!lives(communicator) || !handle) return INVALID_ARGUMENT;
    *handle = memory;
    return SUCCESS;
}
NCCL(int, ncclCommDeregister, Communicator* communicator, void*) {
    return lives(communicator) ? SUCCESS : INVALID_ARGUMENT;
}

NCCL(int, ncclGroupStart) {
    if (!group) group = new Group;
    ++group->depth;
    return SUCCESS;
}
NCCL(int, ncclGroupEnd) {
    if (!group) return refuse(INVALID_USAGE, "NCCL: ncclGroupEnd without ncclGroupStart");
    if (--group->depth) return SUCCESS;
    const std::unique_ptr<Group> whole(std::exchange(group, nullptr));
    return whole->status ? whole->status : finish(whole->copies);
}

NCCL(int, ncclAllReduce, const void* from, void* to, size_t count, int type, int operation,
     Communicator* communicator, CUstream stream) {
    return collective(Copy::ALONE, from, to, count, type, communicator, stream, 0, operation);
}
NCCL(int, ncclReduce, const void* from, void* to, size_t count, int type, int operation, int root,
     Communicator* communicator, CUstream stream) {
    return collective(Copy::ALONE, from, to, count, type, communicator, stream, root, operation);
}
NCCL(int, ncclReduceScatter, const void* from, void* to, size_t count, int type, int operation,
     Communicator* communicator, CUstream stream) {
    return collective(Copy::ALONE, from, to, count, type, communicator, stream, 0, operation);
}
NCCL(int, ncclBroadcast, const void* from, void* to, size_t count, int type, int root,
     Communicator* communicator, CUstream stream) {
    return collective(Copy::ALONE, from, to, count, type, communicator, stream, root);
}
NCCL(int, ncclBcast, void* memory, size_t count, int type, int root, Communicator* communicator,
     CUstream stream) {
    return collective(Copy::ALONE, memory, memory, count, type, communicator, stream, root);
}
NCCL(int, ncclAllGather, const void* from, void* to, size_t count, int type, Communicator* communicator,
     CUstream stream) {
    return collective(Copy::ALONE, from, to, count, type, communicator, stream);
}
NCCL(int, ncclAlltoAll, const void* from, void* to, size_t count, int type, Communicator* communicator,
     CUstream stream) {
    return collective(Copy::ALONE, from, to, count, type, communicator, stream);
}
NCCL(int, ncclGather, const void* from, void* to, size_t count, int type, int root,
     Communicator* communicator, CUstream stream) {
    return collective(Copy::ALONE, from, to, count, type, communicator, stream, root);
}
NCCL(int, ncclScatter, const void* from, void* to, size_t count, int type, int root,
     Communicator* communicator, CUstream stream) {
    return collective(Copy::ALONE, from, to, count, type, communicator, stream, root);
}
NCCL(int, ncclSend, const void* from, size_t count, int type, int peer, Communicator* communicator,
     CUstream stream) {
    return collective(Copy::SEND, from, nullptr, count, type, communicator, stream, peer);
}
NCCL(int, ncclRecv, void* to, size_t count, int type, int peer, Communicator* communicator, CUstream stream) {
    return collective(Copy::RECEIVE, nullptr, to, count, type, communicator, stream, peer);
}

#include "nccl_unsupported.inc"

}  // namespace gpukernel::libraries::nccl
