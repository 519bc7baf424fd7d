// NCCL in the user's program.  A collective of one rank is a copy in its stream's order, which the driver
// makes. Several ranks are on the devices of one lease, in one process (clique.h): each reads what it gives
// in its stream's order, waits for the others, and writes what it gets.  Ranks in other processes, which may
// be on other servers, are refused in a sentence.
#include <sys/random.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "libraries/library.h"
#include "libraries/nccl/communicator.h"
#include "libraries/nccl/parts.h"
#include "libraries/nccl/reduction.h"

namespace gpukernel::libraries {
const int NOT_SUPPORTED_STATUS = 5;  // ncclInvalidUsage: NCCL has no status for what is not there
}

namespace gpukernel::libraries::nccl {

namespace {
// The last release before windows and communicators of the device, of which there is nothing here.
constexpr int VERSION = 22605;

struct UniqueId {
    char bytes[128];
};
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
    std::vector<Part> parts;
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

int collective(Copy::Kind way, Kind kind, const void* from, void* to, size_t count, int type,
               Communicator* communicator, CUstream stream, int root = 0, int operation = 0) {
    if (!lives(communicator)) return ended(refuse(INVALID_ARGUMENT, "NCCL: this is no communicator"));
    if (type < 0 || type >= TYPES)
        return ended(refuse(INVALID_ARGUMENT, "NCCL: there is no type " + std::to_string(type)));
    if (operation < 0 || operation >= OPERATIONS)
        return ended(refuse(INVALID_ARGUMENT, "NCCL: there is no operation " + std::to_string(operation)));
    const int ranks = communicator->ranks();
    if (root < 0 || root >= ranks)
        return ended(refuse(INVALID_ARGUMENT, "NCCL: there is no rank " + std::to_string(root) + " among " +
                                                  (ranks == 1 ? "one" : std::to_string(ranks))));
    if (count > SIZE_MAX / BYTES[type] / static_cast<size_t>(ranks))
        return ended(refuse(INVALID_ARGUMENT, "NCCL: too many elements"));
    if (communicator->clique) {
        const Part part{static_cast<Part::Way>(way),
                        *communicator,
                        {kind, count, type, operation, root},
                        from,
                        to,
                        stream,
                        nullptr,
                        0,
                        0};
        if (!group) return finish(std::vector{part});
        group->parts.push_back(part);
        return SUCCESS;
    }
    const Copy copy{way, communicator, from, to, count * BYTES[type], stream};
    if (group) {
        group->copies.push_back(copy);
        return SUCCESS;
    }
    return finish(std::vector{copy});
}

// Marks identities that this process made.
const std::string& of_this_process() {
    static const auto* const mark = [] {
        auto* const drawn = new std::string(32, 0);
        (void)!::getrandom(drawn->data(), drawn->size(), 0);
        return drawn;
    }();
    return *mark;
}

// Adds a rank to the clique of that identity, which its first rank makes.
int join(const std::string& identity, size_t ranks, Communicator& own) {
    const std::lock_guard lock(communicators().mutex);
    auto& gathering = communicators().gathering;
    std::shared_ptr<Clique>& clique = gathering[identity];
    if (!clique) clique = std::make_shared<Clique>(ranks);
    own.clique = clique;
    std::string sentence = "its ranks do not agree how many they are";
    if (clique->size() == ranks) sentence = clique->join(own.rank, own.device);
    if (!sentence.empty()) return refuse(INVALID_USAGE, "NCCL: " + sentence);
    if (clique->complete()) gathering.erase(identity);
    return SUCCESS;
}

int devices() {
    int count = 0;
    if (DRIVER(cuInit, 0) == CUDA_SUCCESS) (void)DRIVER(cuDeviceGetCount, &count);
    return count;
}

// A communicator of a rank on the current device, on that of an ordinal, or where there is none yet on the
// first.
int create(Communicator** place, int ranks, int rank, const std::string& identity,
           const int* ordinal = nullptr) {
    if (!place || ranks < 1 || rank < 0 || rank >= ranks)
        return ended(refuse(INVALID_ARGUMENT, "NCCL: there is no rank " + std::to_string(rank) + " among " +
                                                  std::to_string(ranks)));
    *place = nullptr;
    if (ranks > 1 && ranks > devices())
        return ended(
            refuse(INVALID_USAGE, "NCCL on a slice has a rank for each of its devices, of which there are " +
                                      std::to_string(devices()) + ", and " + std::to_string(ranks) +
                                      " were asked for: ask for a slice of more devices"));
    if (ranks > 1 && !identity.starts_with(of_this_process()))
        return ended(
            refuse(INVALID_USAGE,
                   "NCCL on a slice joins devices of one process, and this identity is of another process: "
                   "let one process train on all devices"));
    auto own = std::make_unique<Communicator>();
    own->rank = rank;
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
    if (ranks > 1)
        if (int status = join(identity, static_cast<size_t>(ranks), *own)) return ended(status);
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
    of_this_process().copy(id->bytes, of_this_process().size());
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
        case REMOTE_ERROR:
            return "remote process exited or there was a network error";
        default:
            return "unknown result code";
    }
}
NCCL(const char*, ncclGetLastError, Communicator*) { return last_refusal(); }
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

NCCL(int, ncclCommInitRank, Communicator** place, int ranks, UniqueId id, int rank) {
    return create(place, ranks, rank, {id.bytes, sizeof id.bytes});
}
NCCL(int, ncclCommInitRankConfig, Communicator** place, int ranks, UniqueId id, int rank, void*) {
    return create(place, ranks, rank, {id.bytes, sizeof id.bytes});
}
NCCL(int, ncclCommInitRankScalable, Communicator** place, int ranks, int rank, int count, UniqueId* ids,
     void*) {
    if (count < 1 || !ids) return ended(INVALID_ARGUMENT);
    return create(place, ranks, rank, {ids->bytes, sizeof ids->bytes});
}
NCCL(int, ncclCommInitAll, Communicator** place, int ranks, const int* ordinals) {
    if (!place || ranks < 1) return ended(refuse(INVALID_ARGUMENT, "NCCL: there are no ranks"));
    UniqueId id;
    if (int status = ncclGetUniqueId(&id)) return ended(status);
    for (int rank = 0; rank < ranks; ++rank) {
        const int ordinal = ordinals ? ordinals[rank] : rank;
        if (int status = create(place + rank, ranks, rank, {id.bytes, sizeof id.bytes}, &ordinal))
            return status;
    }
    return SUCCESS;
}
NCCL(int, ncclCommSplit, Communicator* communicator, int color, int key, Communicator** place, void*) {
    if (!place || !lives(communicator) || color < -1) return ended(INVALID_ARGUMENT);
    *place = nullptr;
    if (communicator->clique) {
        const Part part{Part::TOGETHER, *communicator, {Kind::SPLIT, 0, 0, 0, 0},
                        nullptr,        nullptr,       nullptr,
                        place,          color,         key};
        if (!group) return finish(std::vector{part});
        group->parts.push_back(part);
        return SUCCESS;
    }
    if (color == -1) return SUCCESS;  // NCCL_SPLIT_NOCOLOR: it will be in none
    const std::lock_guard lock(communicators().mutex);
    communicators().living.insert(*place = new Communicator(*communicator));
    return SUCCESS;
}

NCCL(int, ncclCommFinalize, Communicator* communicator) {
    return lives(communicator) ? SUCCESS : INVALID_ARGUMENT;
}
NCCL(int, ncclCommDestroy, Communicator* communicator) { return communicator ? end(communicator) : SUCCESS; }
NCCL(int, ncclCommAbort, Communicator* communicator) {
    if (!communicator) return SUCCESS;
    if (lives(communicator) && communicator->clique)
        communicator->clique->fail("the communicator was aborted");
    return end(communicator);
}
NCCL(int, ncclCommGetAsyncError, Communicator* communicator, int* error) {
    if (!lives(communicator) || !error) return INVALID_ARGUMENT;
    *error = communicator->clique && communicator->clique->failed() ? REMOTE_ERROR : SUCCESS;
    return SUCCESS;
}
NCCL(int, ncclCommCount, Communicator* communicator, int* count) {
    if (!lives(communicator) || !count) return INVALID_ARGUMENT;
    *count = communicator->ranks();
    return SUCCESS;
}
NCCL(int, ncclCommCuDevice, Communicator* communicator, int* device) {
    if (!lives(communicator) || !device) return INVALID_ARGUMENT;
    *device = communicator->device;
    return SUCCESS;
}
NCCL(int, ncclCommUserRank, Communicator* communicator, int* rank) {
    if (!lives(communicator) || !rank) return INVALID_ARGUMENT;
    *rank = communicator->rank;
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
    if (whole->status) return whole->status;
    const int status = finish(whole->copies);
    return status ? status : finish(whole->parts);
}

NCCL(int, ncclAllReduce, const void* from, void* to, size_t count, int type, int operation,
     Communicator* communicator, CUstream stream) {
    return collective(Copy::ALONE, Kind::ALL_REDUCE, from, to, count, type, communicator, stream, 0,
                      operation);
}
NCCL(int, ncclReduce, const void* from, void* to, size_t count, int type, int operation, int root,
     Communicator* communicator, CUstream stream) {
    return collective(Copy::ALONE, Kind::REDUCE, from, to, count, type, communicator, stream, root,
                      operation);
}
NCCL(int, ncclReduceScatter, const void* from, void* to, size_t count, int type, int operation,
     Communicator* communicator, CUstream stream) {
    return collective(Copy::ALONE, Kind::REDUCE_SCATTER, from, to, count, type, communicator, stream, 0,
                      operation);
}
NCCL(int, ncclBroadcast, const void* from, void* to, size_t count, int type, int root,
     Communicator* communicator, CUstream stream) {
    return collective(Copy::ALONE, Kind::BROADCAST, from, to, count, type, communicator, stream, root);
}
NCCL(int, ncclBcast, void* memory, size_t count, int type, int root, Communicator* communicator,
     CUstream stream) {
    return collective(Copy::ALONE, Kind::BROADCAST, memory, memory, count, type, communicator, stream, root);
}
NCCL(int, ncclAllGather, const void* from, void* to, size_t count, int type, Communicator* communicator,
     CUstream stream) {
    return collective(Copy::ALONE, Kind::ALL_GATHER, from, to, count, type, communicator, stream);
}
NCCL(int, ncclAlltoAll, const void* from, void* to, size_t count, int type, Communicator* communicator,
     CUstream stream) {
    return collective(Copy::ALONE, Kind::ALL_TO_ALL, from, to, count, type, communicator, stream);
}
NCCL(int, ncclGather, const void* from, void* to, size_t count, int type, int root,
     Communicator* communicator, CUstream stream) {
    return collective(Copy::ALONE, Kind::GATHER, from, to, count, type, communicator, stream, root);
}
NCCL(int, ncclScatter, const void* from, void* to, size_t count, int type, int root,
     Communicator* communicator, CUstream stream) {
    return collective(Copy::ALONE, Kind::SCATTER, from, to, count, type, communicator, stream, root);
}
NCCL(int, ncclSend, const void* from, size_t count, int type, int peer, Communicator* communicator,
     CUstream stream) {
    return collective(Copy::SEND, Kind::BROADCAST, from, nullptr, count, type, communicator, stream, peer);
}
NCCL(int, ncclRecv, void* to, size_t count, int type, int peer, Communicator* communicator, CUstream stream) {
    return collective(Copy::RECEIVE, Kind::BROADCAST, nullptr, to, count, type, communicator, stream, peer);
}

#include "nccl_unsupported.inc"

}  // namespace gpukernel::libraries::nccl
