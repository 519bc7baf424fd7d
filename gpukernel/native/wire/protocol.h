// The remoting protocol, version 4: what a shim and a worker say to each other over a unix socket or TCP.
// This header and the table of calls (codegen/calls.txt, from which calls.h is generated) are its
// specification; both ends include them.
//
// Integers are little-endian.
//
// Handshake
// ---------
// Both ends prove that they know the lease's secret before either reads anything else.
//
//     shim                                                              worker
//       |                                                                  |
//       |   Challenge  magic, version, nonce W                             |
//       | <--------------------------------------------------------------- |
//       |                                                                  |
//       |   Proof      magic, version, nonce S,                            |
//       |              HMAC-SHA256(secret, "shim" || W || S || B)          |
//       | ---------------------------------------------------------------> |
//       |                                                                  |
//       |   Welcome    magic, admission,                                   |
//       |              HMAC-SHA256(secret, "worker" || S || W || B)        |
//       | <--------------------------------------------------------------- |
//       |                                                                  |
//       |   FrameHeader, request                                           |
//       | ---------------------------------------------------------------> |
//       |   FrameHeader, AnswerHead, outputs                               |
//       | <--------------------------------------------------------------- |
//
// B is the binding of TLS's (wire/tls.h) where the endpoint says that it is spoken, which then comes before
// all of this; without TLS it is empty.
//
// A shim closes the connection where magic, version or MAC is not what it expects.  A worker replies to a
// Proof that it does not accept with another admission than `welcome` and a MAC of zeros, and closes the
// connection.
//
// Requests and answers
// --------------------
// A request is a FrameHeader and `length` bytes.  Requests are executed in the order in which they come.
//
// A request whose call is asynchronous is not answered: the worker keeps its error, if any, and returns it
// with the next answer, as CUDA itself does.  Every other request is answered by one frame with the
// request's `call` and `number`; its body is an AnswerHead, the text that device code has printed, and the
// call's outputs where the result is CUDA_SUCCESS.  A first line of the text that begins with WARNING
// (common/memory_check.h) is the device's own and goes to the program's standard error.
//
// A worker that ends the connection may send a frame with the call GOODBYE instead of an answer; its body is
// a sentence that says why.
//
// Several threads
// ---------------
// The threads of a program share one connection.  Once the shim has sent `attend`, the worker serves later
// requests while an earlier one waits for the device, and answers in the order in which requests are done.
// Before that it serves strictly one after the other, so that a single-threaded program pays nothing.
//
// The shim chooses the number of a request among those that have no answer outstanding.  What a thread
// requests after it had an answer is served after that answer; no other order is guaranteed, and none is
// needed, since a thread that waits sends nothing.
//
// Shared memory
// -------------
// On one host a shim may first of all send `share_memory`: if the worker agrees, frames go through two rings
// of shared memory (wire/ring.h), and the socket only wakes a sleeping end and shows when the other is gone.
//
// Programs and questions
// ----------------------
// A program sends `introduce` first.  A connection that sends only calls flagged `question` (NVML's, the
// agent's) is no program: its requests count neither as calls nor as use of the slice.
//
// Copies
// ------
// Bulk data is at the end of a body, sent from and received into the user's memory.  A copy is cut into
// pieces of at most COPY_PIECE bytes, so that the worker's buffers stay small.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/image.h"

namespace gpukernel::wire {

constexpr uint32_t MAGIC = 0x4b555047;  // "GPUK"
constexpr uint32_t VERSION = 4;
constexpr size_t NONCE = 32, MAC = 32;

// The worker's first message.
struct Challenge {
    uint32_t magic, version;
    uint8_t nonce[NONCE];
};
// The shim's reply, and the proof that it knows the secret.
struct Proof {
    uint32_t magic, version;
    uint8_t nonce[NONCE];
    uint8_t mac[MAC];
};
// The worker's decision, and its own proof.
enum class Admission : uint32_t { welcome = 0, wrong_secret = 1, full = 2, wrong_version = 3 };
struct Welcome {
    uint32_t magic;
    Admission status;
    uint8_t mac[MAC];
};

// The head of every frame after the handshake.
struct FrameHeader {
    uint32_t length;  // bytes of the body
    uint16_t call;    // CustomCall, DriverCall or GOODBYE
    uint16_t number;  // of the request, and of its answer; 0 where there is no answer
};
static_assert(sizeof(Challenge) == 40 && sizeof(Proof) == 72 && sizeof(Welcome) == 40 &&
              sizeof(FrameHeader) == 8);

// Every answer's body begins with it; `printed` bytes of text follow, then the call's outputs.
struct AnswerHead {
    uint32_t result;   // a CUresult: the call's own, or where that is success, the first error kept
    uint32_t printed;  // bytes of text that device code has printed since the last answer
};

static_assert(sizeof(AnswerHead) == 8);

// The only frame that is no call: the worker's reason for ending the connection.
constexpr uint16_t GOODBYE = 1;

// How a kernel is launched; zeros: the launch does not say.
struct LaunchMode {
    uint8_t cooperative = 0, cluster[3] = {};  // cluster: in blocks, along x, y, z
    friend bool operator==(const LaunchMode&, const LaunchMode&) = default;
};
// The configuration of one kernel launch.
struct Launch {
    uint64_t function, stream;  // handles
    uint32_t shape[6], shared;  // grid in blocks, block in threads; bytes of dynamic shared memory
    LaunchMode mode;
};
static_assert(sizeof(Launch) == 48);

// One operation of a batch (CUstreamBatchMemOpParams): a value that a stream writes or waits for, or a
// barrier, of which only the flags count.
struct MemoryOperation {
    uint32_t type, flags;
    uint64_t address, value;
};
constexpr unsigned MOST_MEMORY_OPERATIONS = 256;  // at a time, as in CUDA

// A read of device memory that is made once a stream has come to a host function.  With the news comes
// nothing of it, or a byte that is 1 where the default stream had nothing left to do then, and for each read
// a byte that is 0, or 1 and what was read.  Nothing comes where the program has to be told something with an
// answer of its own: an error, printed text.
struct EarlyRead {
    uint64_t address, bytes;
    friend bool operator==(const EarlyRead&, const EarlyRead&) = default;
};
constexpr size_t MOST_EARLY_READS = 8, MOST_EARLY_BYTES = 16 << 10;  // of one function, together
constexpr size_t FEW_EARLY_BYTES = 1 << 10;  // of each, where a worker does not say READS_MORE_EARLY

// What follows an answer to a call with a parameter that `varies` (codegen/calls.txt), so often as may be:
// the answer for another value of it.
struct OtherAnswer {
    uint32_t value;
    int32_t answer;
};

// The bit of a host function's number that says that it is a gate: no function, but a place where later work
// waits for functions that were taken before.  A worker that has no room for functions has some for gates.
constexpr uint64_t GATE = uint64_t{1} << 63;

// The operations of `virtual_memory`: arguments → answer.  Addresses and handles are the program's own; sizes
// are in bytes.
enum class VirtualMemory : uint32_t {
    granularity,  // option → size
    reserve,      // size, alignment, address wanted → address
    free,         // address, size
    create,       // size, CUmemAllocationHandleType → handle
    release,      // handle
    map,          // address, size, offset, handle
    unmap,        // address, size
    set_access,   // address, size, CUmemAccess_flags
    get_access,   // address → CUmemAccess_flags
    retain,       // address → handle
    size,         // handle → size
    handle_type,  // handle → CUmemAllocationHandleType
};

// The extent of a pitched copy: width in bytes, height in rows, depth in slices.
struct PitchedCopy {
    uint64_t stream, width, height, depth;
};
// One side of a pitched copy on the device: pitched memory, or a CUDA array (CUDA_MEMCPY3D).
struct PitchedPlace {
    uint64_t array;        // the array's handle; 0: memory
    uint64_t address;      // memory: the copy's first byte
    uint64_t pitch, rows;  // memory: bytes from one row, and rows from one slice, to the next
    uint64_t x, y, z;      // an array: the copy's first byte, row and slice
};

// The two forms of a module image in a request.  `whole_image`: the image's bytes; a server keeps an image of
// NAMED_IMAGE bytes or more for the next time.  `named_image`: the image's name, 32 bytes, which is
// HMAC-SHA256(salt, image) under the salt of the `device` answer; where the server has no image of that name
// the result is CUDA_ERROR_FILE_NOT_FOUND.
constexpr uint8_t whole_image = 0, named_image = 1;
constexpr size_t NAMED_IMAGE = 16 << 10;

// The bit that tells handles numbered by a shim (streams, events) from those numbered by a worker.
constexpr uint64_t NAMED_BY_SHIM = uint64_t{1} << 40;

// Sizes in bytes.  The largest bodies of requests, by the `limit` of their call in calls.txt:
constexpr size_t COPY_PIECE = 1 << 20;        // of one piece of a copy
constexpr size_t MAX_CALL = 64 << 10;         // no limit given
constexpr size_t MAX_BODY = MAX_IMAGE;        // a module image
constexpr size_t MAX_COPY = COPY_PIECE + 64;  // one piece and where it goes
constexpr size_t MAX_PITCHED_COPY = sizeof(PitchedCopy) + sizeof(PitchedPlace) + COPY_PIECE;
constexpr size_t MAX_COMMAND = 512;  // what a worker keeps of a command line

}  // namespace gpukernel::wire
