// The remoting protocol, version 2: what a shim and a worker say to each other over a unix socket or TCP.
//
// All integers are little-endian.  A connection begins with a handshake in which both ends prove that they
// know the lease's secret and nothing else is read:
//
//     worker → shim    Challenge { magic, version, nonce[32] }
//     shim → worker    Proof     { magic, version, nonce[32], mac[32] }   mac = HMAC-SHA256(secret, "shim" ‖
//     worker's nonce ‖ shim's nonce) worker → shim    Welcome   { magic, status, mac[32] }               mac
//     = HMAC-SHA256(secret, "worker" ‖ shim's nonce ‖ worker's nonce)
//
// Then the shim sends requests, each a FrameHeader and `length` bytes, executed in the order in which they
// come.  A request whose call is asynchronous is not answered: its error, if any, is kept and told by the
// next answer, as CUDA itself does.  Every other request is answered by one frame whose `call` is the
// request's, whose number is the request's too, and whose body begins with
//
//     u32 result      a CUresult: the call's own, or where that is success, the first error kept
//     u32 printed     how many bytes of text device code has printed since the last answer; they follow
//
// and goes on with the call's outputs where the result is CUDA_SUCCESS.
//
// A program's threads share a connection: while a request waits for the device, a worker may serve those
// behind it, and answers come in the order in which requests are done.  The number of a request, which the
// shim chooses, is that of no other which has no answer yet.  What a thread asks after it had an answer is
// served after that; nothing else is promised, and nothing else is asked for, since a thread that waits asks
// nothing.  A worker does so only once the shim has said that the program has several threads
// (Special::attend), so that one thread alone costs nothing.
//
// A frame with call = GOODBYE may come
// instead of an answer: its body is a sentence that says why the worker ends the connection.
//
// On one host a shim may ask first of all to share memory (Special::share_memory): where the worker agrees,
// frames go through two rings of memory (wire/ring.h), and the socket only wakes who sleeps and tells who is
// gone.
//
// A program introduces itself first.  `device`, `usage` and `attend` are questions about the slice: a
// connection that asks nothing else (NVML's) is no program, and its questions are neither calls nor a sign of
// use.
//
// Bulk data of copies stands at the end of a body and is sent from, and received into, the user's memory.
// A copy is cut into pieces of at most COPY_PIECE bytes, so that a worker's buffer stays small.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpukernel::wire {

constexpr uint32_t MAGIC = 0x4b555047;  // "GPUK"
constexpr uint32_t VERSION = 4;
constexpr size_t NONCE = 32, MAC = 32;

struct Challenge {
    uint32_t magic, version;
    uint8_t nonce[NONCE];
};
struct Proof {
    uint32_t magic, version;
    uint8_t nonce[NONCE];
    uint8_t mac[MAC];
};
enum class Admission : uint32_t { welcome = 0, wrong_secret = 1, full = 2, wrong_version = 3 };
struct Welcome {
    uint32_t magic;
    Admission status;
    uint8_t mac[MAC];
};

struct FrameHeader {
    uint32_t length;  // of the body
    uint16_t call;
    uint16_t number;  // 0 where there is no answer
};
static_assert(sizeof(Challenge) == 40 && sizeof(Proof) == 72 && sizeof(Welcome) == 40 &&
              sizeof(FrameHeader) == 8);

// Calls: the driver functions follow from FIRST_FUNCTION on, numbered by codegen in one table for both ends.
constexpr uint16_t GOODBYE = 1;
constexpr uint16_t FIRST_SPECIAL = 16, FIRST_FUNCTION = 64;
enum class Special : uint16_t {
    device = FIRST_SPECIAL,  // → name, uuid, memory, driver version, attributes
    load_image,              // image → module handle
    load_library,            // the same as a library
    kernel_layout,           // function or kernel → offset and size of each parameter, its name, threads a
                             // block, registers
    launch,                  // asynchronous: Launch, the kernel's parameters
    copy_to_device,          // asynchronous: address, stream, bytes
    copy_to_host,            // address, stream, count → bytes
    link_create,             // → handle
    link_add,                // handle, type, name, image → log
    link_complete,           // handle → image, log
    pointer_attribute,       // attribute, address → u64
    best_block_size,         // function, shared bytes, limit → grid, block
    share_memory,            // → a ring's descriptor beside the answer; both ends use the ring from then on
    introduce,               // asynchronous: process id, command line as /proc/PID/cmdline has it, a key that
                             // the shim chose
    usage,                   // → memory limit, used, GPU seconds, GPU share of the last second (doubles);
                             //   the number of programs; of each: process id, bytes, command line; then the
                             //   most memory used since a question with a body, which begins anew; launches
    functions,               // of a library?, its or a module's handle, how many at most → count, handles
    reset,                   // everything that this program made on the device ends
    copy_box,                // asynchronous: BoxCopy, the source, the destination
    box_to_device,           // asynchronous: BoxCopy, the destination, bytes without gaps
    box_to_host,             // BoxCopy, the source → bytes without gaps
    attend,          // asynchronous: the key of a connection whose requests shall be served while one of
                     // them waits.  That connection may wait right now, so this comes over another one
    virtual_memory,  // an operation as below, four u64 of which it takes what it needs → u64 or nothing
    host_function,   // asynchronous: stream, number; what is submitted later waits for host_function_done
    // Over another connection: with the key of the program's, as the stream may keep that waiting.
    next_host_function,  // → number, status (s32) of the next function that its stream has come to
    host_function_done,  // asynchronous: number
    cluster_occupancy,   // Launch; whether the active clusters are asked for, or the largest → how many, or
                         // how large
    memory_operations,   // asynchronous: stream, MemoryOperation …
};

struct LaunchMode {
    uint8_t cooperative = 0, cluster[3] = {};  // blocks; zeros: nobody says
    friend bool operator==(const LaunchMode&, const LaunchMode&) = default;
};
struct Launch {
    uint64_t function, stream;
    uint32_t shape[6], shared;  // the grid, then the block; bytes
    LaunchMode mode;
};
static_assert(sizeof(Launch) == 48);

// A value that a stream writes or waits for (CUstreamBatchMemOpParams); of a barrier only the flags.
struct MemoryOperation {
    uint32_t type, flags;
    uint64_t address, value;
};
constexpr unsigned MOST_MEMORY_OPERATIONS = 256;  // at a time, as in CUDA

// cuMemCreate and what belongs to it.  Addresses and handles are the program's own; sizes are bytes.
enum class VirtualMemory : uint32_t {
    granularity,  // option → size
    reserve,      // size, alignment, address wanted → address
    free,         // address, size
    create,       // size → handle
    release,      // handle
    map,          // address, size, offset, handle
    unmap,        // address, size
    set_access,   // address, size, CUmemAccess_flags
    get_access,   // address → CUmemAccess_flags
    retain,       // address → handle
    size,         // handle → size
};

// A copy of rows on the device: in memory with a pitch, or in a CUDA array (CUDA_MEMCPY3D).
struct BoxCopy {
    uint64_t stream, width, height, depth;  // bytes, rows, slices
};
struct BoxPlace {
    uint64_t array;        // its number; 0: memory
    uint64_t address;      // of the box's first byte, where it is memory
    uint64_t pitch, rows;  // bytes from one row, and rows from one slice, to the next, where it is memory
    uint64_t x, y, z;      // in bytes, rows and slices of an array
};
constexpr size_t MAX_BOX = sizeof(BoxCopy) + sizeof(BoxPlace) + (1 << 20);

// An image travels as `named_image` and its name, 32 bytes: HMAC-SHA256 of it under the salt that `device`
// told; where the server has none of that name the answer is CUDA_ERROR_FILE_NOT_FOUND.  Or as `whole_image`
// and its bytes; one of NAMED_IMAGE bytes and more the server keeps for the next time.
constexpr uint8_t whole_image = 0, named_image = 1;
constexpr size_t NAMED_IMAGE = 16 << 10;

// Handles that a shim names itself (streams, events) have this bit; those that a worker names have not.
constexpr uint64_t NAMED_BY_SHIM = uint64_t{1} << 40;

constexpr size_t COPY_PIECE = 1 << 20;
constexpr size_t MAX_BODY = 512 << 20;  // the largest module image
constexpr size_t MAX_CALL = 64 << 10;   // the largest body of any other call but copies
constexpr size_t MAX_COMMAND = 512;     // what is kept of a command line

constexpr size_t most_of(uint16_t call) {  // bytes that the body of a request may have
    switch (static_cast<Special>(call)) {
        case Special::load_image:
        case Special::load_library:
        case Special::link_add:
            return MAX_BODY;
        case Special::copy_to_device:
            return COPY_PIECE + 64;
        case Special::box_to_device:
            return MAX_BOX;
        default:
            return MAX_CALL;
    }
}

}  // namespace gpukernel::wire
