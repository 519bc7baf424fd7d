// A worker that lies: a program's driver calls are answered with whatever the input says.  The shim may fail
// them, but reads and writes nothing that is not its own and takes no more memory than what really comes.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "bytes.h"
#include "common/hmac.h"
#include "shim/process.h"
#include "shim/transport/request.h"
#include "wire/device_facts.h"
#include "wire/socket.h"

using namespace gpukernel;

namespace gpukernel::shim {
class Impostor {  // the connection's other end changes hands
  public:
    static void connect(Connection& connection, int fd) {
        std::lock_guard lock(connection.mutex);
        connection.channel_ = wire::Channel(wire::Socket(fd));
        connection.buffer_.clear();
        connection.alive_ = true;
    }
};
}  // namespace gpukernel::shim

namespace {
constexpr char SECRET[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
constexpr size_t MOST_CALLS = 12, MOST_PARAMETERS = 32 << 10, BUFFER = 64 << 10;

std::string_view view(const uint8_t* data, size_t size) {
    return {reinterpret_cast<const char*>(data), size};
}

void answer(wire::Socket& socket, uint16_t call, uint32_t result, uint32_t printed, const void* body,
            size_t size) {
    const struct {
        wire::FrameHeader header;
        wire::AnswerHead answer;
    } head{{static_cast<uint32_t>(size + sizeof(wire::AnswerHead)), call, 0}, {result, printed}};
    socket.write(&head, sizeof head, body, size);
}

// An honest worker, for as long as it takes to be believed.
void welcome(const wire::Socket& listener) {
    wire::Socket socket(::accept(listener.fd(), nullptr, nullptr));
    wire::Challenge challenge{wire::MAGIC, wire::VERSION, {}};
    wire::Proof proof;
    wire::Welcome welcome{wire::MAGIC, wire::Admission::welcome, {}};
    if (!socket.write(&challenge, sizeof challenge) || !socket.read(&proof, sizeof proof)) std::abort();
    const wire::Digest mac = wire::hmac_sha256(
        SECRET, {"worker", view(proof.nonce, wire::NONCE), view(challenge.nonce, wire::NONCE)});
    std::memcpy(welcome.mac, mac.data(), mac.size());
    wire::FrameHeader header{};
    if (!socket.write(&welcome, sizeof welcome)) std::abort();
    while (header.call !=
           static_cast<uint16_t>(wire::CustomCall::device)) {  // the program introduces itself first
        if (!socket.read(&header, sizeof header)) std::abort();
        std::vector<char> body(header.length);
        if (!socket.read(body.data(), body.size())) std::abort();
    }
    wire::DeviceFacts facts;
    std::memset(&facts, 'x', sizeof facts);  // names that do not end
    answer(socket, header.call, CUDA_SUCCESS, 0, &facts, sizeof facts);
    char byte;
    socket.read(&byte, 1);
}

struct Program {
    Bytes in;
    wire::Socket worker{};
    shim::Connection& connection = shim::process()->devices[0]->connection;
    std::vector<char> buffer = std::vector<char>(BUFFER);

    void connect() {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
        worker = wire::Socket(ends[0]);
        shim::Impostor::connect(connection, ends[1]);
    }

    void prepare(uint16_t call) {  // what the worker will have answered
        const uint8_t what = in.u8();
        const uint16_t size = in.u8() & 1 ? in.u8() : in.u16() % 4096;
        std::vector<char> body(size);
        const std::string_view bytes = in.take(size);
        std::copy(bytes.begin(), bytes.end(), body.begin());
        switch (what % 8) {
            case 0:  // bytes
                worker.write(body.data(), body.size());
                break;
            case 1:
                answer(worker, wire::GOODBYE, in.get<uint32_t>(), in.get<uint32_t>(), body.data(),
                       body.size());
                break;
            case 2: {  // a length that is not true
                const wire::FrameHeader header{in.get<uint32_t>(), call, 0};
                worker.write(&header, sizeof header, body.data(), body.size());
                break;
            }
            case 3:
                answer(worker, in.u16(), 0, 0, body.data(), body.size());
                break;
            case 4:
                answer(worker, call, in.u16() % 800, in.get<uint32_t>(), body.data(), body.size());
                break;
            case 5:
                answer(worker, call, 0, in.u8(), body.data(), body.size());
                break;
            default:
                answer(worker, call, 0, 0, body.data(), body.size());
        }
    }
    // Nothing more comes: a call whose answer is cut short must not wait for ever.
    void ready() { ::shutdown(worker.fd(), SHUT_WR); }
    void prepare(wire::CustomCall call) { prepare(static_cast<uint16_t>(call)); }
    void prepare(wire::DriverCall call) { prepare(static_cast<uint16_t>(call)); }

    void step() {
        connect();
        static uint64_t functions = 1 << 20;  // the shim knows each for as long as it lives
        CUdeviceptr address = 0;
        size_t bytes = 0, total = 0;
        void* handle = nullptr;
        const char* name = nullptr;
        switch (in.u8() % 16) {
            case 0:
                prepare(wire::DriverCall::cuMemAlloc_v2);
                ready();
                cuMemAlloc_v2(&address, 4096);
                break;
            case 1:
                prepare(wire::CustomCall::copy_to_host);
                ready();
                cuMemcpyDtoH_v2(buffer.data(), 0x1000, in.u16());
                break;
            case 2: {  // in pieces
                std::vector<char> large(2 * wire::COPY_PIECE + 100);
                for (int n = 0; n < 3; ++n) prepare(wire::CustomCall::copy_to_host);
                ready();
                cuMemcpyDtoH_v2(large.data(), 0x1000, large.size());
                break;
            }
            case 3:
                prepare(wire::CustomCall::load_image);
                ready();
                cuModuleLoadData(reinterpret_cast<CUmodule*>(&handle), ".version 7.0");
                break;
            case 4: {
                prepare(wire::CustomCall::load_library);
                ready();
                char log[64];
                CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
                void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
                cuLibraryLoadData(reinterpret_cast<CUlibrary*>(&handle), ".version 7.0", options, values, 2,
                                  nullptr, nullptr, 0);
                break;
            }
            case 5:
                prepare(wire::CustomCall::kernel_layout);
                ready();
                if (cuFuncGetName(&name, reinterpret_cast<CUfunction>(++functions)) == CUDA_SUCCESS &&
                    std::strlen(name) > wire::MAX_BODY)
                    std::abort();
                break;
            case 6:
            case 7: {
                prepare(wire::CustomCall::kernel_layout);
                ready();
                std::vector<void*> parameters(MOST_PARAMETERS + 1, buffer.data());
                cuLaunchKernel(reinterpret_cast<CUfunction>(++functions), 1, 1, 1, 1, 1, 1, 0, nullptr,
                               parameters.data(), nullptr);
                break;
            }
            case 8: {
                for (auto call : {wire::CustomCall::link_create, wire::CustomCall::link_add,
                                  wire::CustomCall::link_complete})
                    prepare(call);
                ready();
                if (cuLinkCreate_v2(0, nullptr, nullptr, reinterpret_cast<CUlinkState*>(&handle)) !=
                    CUDA_SUCCESS)
                    break;
                cuLinkAddData_v2(static_cast<CUlinkState>(handle), CU_JIT_INPUT_PTX, buffer.data(), 16, "a",
                                 0, nullptr, nullptr);
                void* image = nullptr;
                if (cuLinkComplete(static_cast<CUlinkState>(handle), &image, &bytes) == CUDA_SUCCESS && bytes)
                    buffer[0] ^= static_cast<char*>(image)[bytes - 1];
                break;
            }
            case 9:
                prepare(wire::CustomCall::pointer_attribute);
                ready();
                cuPointerGetAttribute(&address, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, 0x1000);
                break;
            case 10:
                prepare(wire::DriverCall::cuMemGetInfo_v2);
                ready();
                cuMemGetInfo_v2(&bytes, &total);
                break;
            case 11:
                cuMemcpyHtoD_v2(0x1000, buffer.data(), in.u16() % 20000);
                break;
            case 12:
                prepare(wire::DriverCall::cuStreamSynchronize);
                ready();
                cuStreamSynchronize(nullptr);
                break;
            case 13: {
                prepare(wire::CustomCall::best_block_size);
                prepare(wire::DriverCall::cuFuncGetAttribute);
                prepare(wire::DriverCall::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags);
                ready();
                int grid, block;
                cuOccupancyMaxPotentialBlockSize(&grid, &block, nullptr, nullptr, 0, 0);
                // Answers to other questions may come with these, and are kept.
                const auto function = reinterpret_cast<CUfunction>(functions++);
                cuFuncGetAttribute(&grid, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
                cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&grid, function, 1024, 0, 0);
                break;
            }
            case 14:
                prepare(wire::DriverCall::cuModuleGetFunction);
                ready();
                cuModuleGetFunction(reinterpret_cast<CUfunction*>(&handle), nullptr, "k");
                break;
            default: {
                char text[sizeof(wire::DeviceFacts)];
                cuDeviceGetName(text, sizeof text, 0);
                if (std::strlen(text) >= sizeof wire::DeviceFacts::name) std::abort();
                cuDeviceGetPCIBusId(text, sizeof text, 0);
                if (std::strlen(text) >= sizeof wire::DeviceFacts::bus_id) std::abort();
            }
        }
        char requests[64 << 10];  // nobody executes them
        while (::recv(worker.fd(), requests, sizeof requests, MSG_DONTWAIT) > 0) {
        }
    }
};
}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    char folder[] = "/tmp/gpukernel-fuzz-XXXXXX";
    if (!::mkdtemp(folder)) std::abort();
    const std::string path = std::string(folder) + "/data.sock", file = std::string(folder) + "/lease";
    std::string error;
    const wire::Socket listener = wire::listen_unix(path, 0600, error);
    std::FILE* lease = std::fopen(file.c_str(), "w");
    if (!listener || !lease) std::abort();
    std::fprintf(lease, "version 2\nstate live\nsecret %s\ndevice 0 unix:%s\n", SECRET, path.c_str());
    std::fclose(lease);
    ::setenv("GPUKERNEL_LEASE_FILE", file.c_str(), 1);
    ::setenv("GPUKERNEL_SHARED_MEMORY", "0", 1);
    std::thread worker(welcome, std::cref(listener));
    CUcontext context;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS)
        std::abort();
    ::shutdown(listener.fd(), SHUT_RDWR);
    shim::Impostor::connect(shim::process()->devices[0]->connection, -1);
    worker.join();
    ::unlink(path.c_str()), ::unlink(file.c_str()), ::rmdir(folder);
    // What the shim tells people would be a line for every input.
    const int nowhere = ::open("/dev/null", O_WRONLY);
    ::dup2(nowhere, STDOUT_FILENO);
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Program program{Bytes(data, size)};
    program.connect();
    for (size_t n = 0; n < MOST_CALLS && !program.in.empty() && program.connection.alive(); ++n)
        program.step();
    ::shutdown(program.worker.fd(), SHUT_RDWR);
    return 0;
}
