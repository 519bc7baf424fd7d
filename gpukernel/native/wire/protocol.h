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
// request's and whose body begins with
//
//     u32 result      a CUresult: the call's own, or where that is success, the first error kept
//     u32 printed     how many bytes of text device code has printed since the last answer; they follow
//
// and goes on with the call's outputs where the result is CUDA_SUCCESS.  A frame with call = GOODBYE may come
// instead of an answer: its body is a sentence that says why the worker ends the connection.
//
// On one host a shim may ask first of all to share memory (Special::share_memory): where the worker agrees,
// frames go through two rings of memory (wire/ring.h), and the socket only wakes who sleeps and tells who is
// gone.
//
// A program introduces itself first.  `device` and `usage` are questions about the slice: a connection that
// asks nothing else (NVML's) is no program, and its questions are neither calls nor a sign of use.
//
// Bulk data of copies stands at the end of a body and is sent from, and received into, the user's memory.
// A copy is cut into pieces of at most COPY_PIECE bytes, so that a worker's buffer stays small.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpukernel::wire {

constexpr uint32_t MAGIC = 0x4b555047;  // "GPUK"
constexpr uint32_t VERSION = 2;
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
    uint16_t reserved;
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
    launch,                  // asynchronous
    copy_to_device,          // asynchronous: address, stream, bytes
    copy_to_host,            // address, stream, count → bytes
    link_create,             // → handle
    link_add,                // handle, type, name, image → log
    link_complete,           // handle → image, log
    pointer_attribute,       // attribute, address → u64
    best_block_size,         // function, shared bytes, limit → grid, block
    share_memory,            // → a ring's descriptor beside the answer; both ends use the ring from then on
    introduce,               // asynchronous: process id, command line as /proc/PID/cmdline has it
    usage,                   // → memory limit, used, GPU seconds, GPU share of the last second (doubles);
                             //   the number of programs; of each: process id, bytes, command line; then the
                             //   most memory used since a question with a body, which begins anew; launches
};

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
        default:
            return MAX_CALL;
    }
}

}  // namespace gpukernel::wire
