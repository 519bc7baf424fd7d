// A program that says what it likes to a worker: a session on the simulated GPU serves requests that come
// over a socket pair.  Handles and addresses that the worker named are used again, or nothing would get past
// the first check.
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <iterator>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "bytes.h"
#include "simgpu/driver/state.h"
#include "worker/session/session.h"

using namespace gpukernel;

namespace {
constexpr size_t LEASE_BYTES = 8 << 20, MOST_REQUESTS = 48;
constexpr uint16_t CUSTOM_CALLS = static_cast<uint16_t>(wire::CustomCall::end) - wire::FIRST_CUSTOM_CALL;
constexpr uint16_t DRIVER_CALLS = static_cast<uint16_t>(wire::DriverCall::end) - wire::FIRST_DRIVER_CALL;

constexpr const char* IMAGES[] = {
    ".version 7.0\n.target sm_70\n.address_size 64\n.global .align 8 .b8 g[64];\n.visible .entry k(.param "
    ".u64 p, .param .u32 n) { "
    ".reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .pred %p; ld.param.u64 %rd1, [p]; ld.param.u32 %r1, [n]; "
    "mov.u32 %r2, %tid.x; "
    "setp.ge.u32 %p, %r2, %r1; @%p ret; mul.wide.u32 %rd2, %r2, 4; add.s64 %rd3, %rd1, %rd2; st.global.u32 "
    "[%rd3], %r2; ret; }\n"
    ".visible .entry empty() { ret; }\n",
    ".version 7.0\n.target sm_70\n.address_size 64\n.extern .func (.param .b32 r) vprintf(.param .b64 f, "
    ".param .b64 a);\n"
    ".global .align 1 .b8 g[4] = {104, 105, 10, 0};\n.visible .entry k() { .reg .b64 %rd<2>; mov.u64 %rd1, "
    "g; { .param .b64 f; "
    ".param .b64 a; .param .b32 n; st.param.b64 [f], %rd1; st.param.b64 [a], %rd1; call (n), vprintf, (f, "
    "a); } ret; }\n",
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .func (.param .b32 r) f(.param .b32 x) { ret; "
    "}\n",
    ".version 7.0\n.target sm_90\n",
    "\x7f"
    "ELF\x02\x01\x01",
    "",
};
constexpr const char* NAMES[] = {"k", "g", "empty", "f", ""};

worker::Lease& lease() {
    static worker::Lease* const only = [] {
        ::setenv("GPUKERNEL_SIMGPU_THREADS", "1", 1);
        ::setenv("GPUKERNEL_SIMGPU", "v100-16gb", 1);
        auto* made = new worker::Lease;
#define GPUKERNEL_DRIVER_FUNCTION(name) made->cuda.name = &::name;
#include "driver_functions.inc"
#undef GPUKERNEL_DRIVER_FUNCTION
        made->limit(LEASE_BYTES);
        if (made->cuda.cuInit(0) != CUDA_SUCCESS ||
            made->cuda.cuDevicePrimaryCtxRetain(&made->context, 0) != CUDA_SUCCESS ||
            !worker::capture_output())
            std::abort();
        return made;
    }();
    return *only;
}

// After these nobody would answer: requests would go through the ring, which the tests of tests/remoting
// feed, or wait for a function of the program's that nobody runs.
bool is_left_out(uint16_t call) {
    switch (static_cast<wire::CustomCall>(call)) {
        case wire::CustomCall::share_memory:
        case wire::CustomCall::host_function:
        case wire::CustomCall::next_host_function:
            return true;
        default:
            return false;
    }
}

// What a worker does by executing itself anew: a device without the sticky error.
void heal() {
    simgpu::Device* device = simgpu::driver()->devices[0].get();
    const simgpu::Model* model = device->model;
    device->~Device();
    new (device) simgpu::Device{};
    device->index = 0, device->model = model,
    device->memory = simgpu::make_device_memory(model->memory_bytes);
    lease().poisoned = false;
}

class Program {
  public:
    Program(int fd, Bytes in) : socket_(fd), in_(in) {}

    void run() {
        for (size_t n = 0; n < MOST_REQUESTS && !in_.empty() && step(); ++n) {
        }
    }

  private:
    wire::Socket socket_;
    Bytes in_;
    std::vector<char> body_;
    std::vector<uint64_t> handles_{0, 1}, addresses_{0};

    uint64_t pick(const std::vector<uint64_t>& from) { return from[in_.u8() % from.size()]; }

    bool step() {
        body_.clear();
        wire::Writer out(body_);
        const uint8_t what = in_.u8();
        if (what >= 248) return shapes(out);
        switch (what % 8) {
            case 0: {  // any frame
                const uint16_t call = in_.u16() % 256;
                const std::string_view bytes = in_.take(in_.u8());
                out.bytes(bytes.data(), bytes.size());
                return send(call);
            }
            case 1:
            case 2: {  // a driver call with arguments that may mean something
                const uint16_t call = wire::FIRST_DRIVER_CALL + in_.u8() % DRIVER_CALLS;
                arguments(out, in_.u8() % 8);
                return send(call);
            }
            case 3:
                out.put<uint64_t>(uint64_t{in_.u16()} * 67);
                return send(static_cast<uint16_t>(wire::DriverCall::cuMemAlloc_v2));
            case 4: {
                constexpr wire::CustomCall calls[] = {
                    wire::CustomCall::load_image, wire::CustomCall::load_library, wire::CustomCall::link_add};
                const wire::CustomCall call = calls[in_.u8() % std::size(calls)];
                if (call == wire::CustomCall::link_add) {
                    out.put(pick(handles_));
                    out.put<int32_t>(in_.u8() % 8);
                    out.text("a");
                }
                if (const uint8_t form = in_.u8() % 16; form) {
                    out.put<uint8_t>(wire::whole_image);
                } else {
                    out.put<uint8_t>(wire::named_image);
                }
                if (const uint8_t image = in_.u8(); image < 128) {
                    const std::string_view text = IMAGES[image % std::size(IMAGES)];
                    out.bytes(text.data(), text.size());
                } else {
                    const std::string_view bytes = in_.take(image);
                    out.bytes(bytes.data(), bytes.size());
                }
                return send(static_cast<uint16_t>(call));
            }
            case 5: {  // a launch of little
                out.put(pick(handles_));
                out.put(pick(handles_));
                for (int n = 0; n < 3; ++n) out.put<uint32_t>(in_.u8() % 3);
                for (uint32_t most : {40, 3, 2}) out.put<uint32_t>(in_.u8() % most);
                out.put<uint32_t>(in_.u8() % 4 ? in_.u8() : in_.get<uint32_t>());
                out.put<uint32_t>(in_.u8() & 1);
                out.put(pick(addresses_));
                arguments(out, in_.u8() % 3);
                return send(static_cast<uint16_t>(wire::CustomCall::launch));
            }
            case 6: {
                const uint8_t sort = in_.u8();
                const uint16_t size = in_.u16();
                out.put<uint64_t>(pick(addresses_) + (sort & 2 ? in_.u16() : 0));
                out.put(pick(handles_));
                if (sort & 1)
                    out.extend(size);
                else
                    out.put<uint64_t>(sort & 4 ? in_.get<uint64_t>() : size);
                return send(static_cast<uint16_t>(sort & 1 ? wire::CustomCall::copy_to_device
                                                           : wire::CustomCall::copy_to_host));
            }
            default: {  // a custom call
                arguments(out, in_.u8() % 4);
                const uint16_t call = wire::FIRST_CUSTOM_CALL + in_.u8() % CUSTOM_CALLS;
                if (call == static_cast<uint16_t>(wire::CustomCall::virtual_memory)) virtual_memory(out);
                if (call == static_cast<uint16_t>(wire::CustomCall::memory_operations))
                    memory_operations(out);
                return send(call);
            }
        }
    }

    // Arrays, what is seen through them, and pitched copies of them: sizes are small, or whatever comes.
    uint64_t size() {
        const uint8_t n = in_.u8();
        return n < 250 ? n % 20 : in_.get<uint64_t>();
    }
    bool shapes(wire::Writer& out) {
        const auto call = [&](wire::DriverCall which) { return send(static_cast<uint16_t>(which)); };
        constexpr int formats[] = {1, 2, 3, 8, 9, 10, 16, 32, 0xc2, 0xb0};
        switch (in_.u8() % 6) {
            case 0:
            case 1: {
                CUDA_ARRAY3D_DESCRIPTOR shape{};
                shape.Width = size(), shape.Height = size(), shape.Depth = size();
                shape.Format = static_cast<CUarray_format>(formats[in_.u8() % std::size(formats)]);
                shape.NumChannels = 1u << in_.u8() % 3, shape.Flags = in_.u8() % 16;
                out.put(shape);
                if (in_.u8() % 2) return call(wire::DriverCall::cuArray3DCreate_v2);
                out.put<uint32_t>(in_.u8());
                return call(wire::DriverCall::cuMipmappedArrayCreate);
            }
            case 2: {
                CUDA_RESOURCE_DESC resource{};
                resource.resType = static_cast<CUresourcetype>(in_.u8() % 5);
                const uint64_t at = in_.u8() % 2 ? pick(handles_) : pick(addresses_);
                resource.res.pitch2D = {at, CU_AD_FORMAT_FLOAT, 1, size(), size(), 32 * size()};
                out.put(resource);
                if (in_.u8() % 4 == 0) return call(wire::DriverCall::cuSurfObjectCreate);
                CUDA_TEXTURE_DESC sampler{};
                sampler.filterMode = static_cast<CUfilter_mode>(in_.u8() % 2), sampler.flags = in_.u8() % 4;
                out.put(sampler);
                out.put<uint8_t>(0);
                return call(wire::DriverCall::cuTexObjectCreate);
            }
            default: {
                wire::PitchedCopy copy{pick(handles_) * (in_.u8() % 2), size(), size(), size()};
                const wire::CustomCall which[] = {wire::CustomCall::copy_pitched,
                                                  wire::CustomCall::pitched_to_device,
                                                  wire::CustomCall::pitched_to_host};
                const uint8_t chosen = in_.u8() % 3;
                out.put(copy);
                for (int sides = chosen == 0 ? 2 : 1; sides; --sides) {
                    const bool array = in_.u8() % 2;
                    out.put(wire::PitchedPlace{array ? pick(handles_) : 0, pick(addresses_) + in_.u8(),
                                               size(), size(), size(), size(), size()});
                }
                if (chosen == 1)
                    out.extend(in_.u8() % 2 ? in_.u8() : copy.width * copy.height * copy.depth % 4096);
                return send(static_cast<uint16_t>(which[chosen]));
            }
        }
    }

    // An operation on virtual memory, with sizes that fit its granularity more often than not.
    void virtual_memory(wire::Writer& out) {
        body_.clear();
        out.put<uint32_t>(in_.u8() % 12);
        for (int n = 0; n < 4; ++n) switch (in_.u8() % 4) {
                case 0:
                    out.put(pick(handles_));
                    break;
                case 1:
                    out.put(pick(addresses_));
                    break;
                case 2:
                    out.put<uint64_t>(uint64_t{in_.u8()} % 8 << 21);
                    break;
                default:
                    out.put(in_.get<uint64_t>());
            }
    }

    // Words that a stream writes.  Waits are of a kind that is refused: nobody would end one of another kind.
    void memory_operations(wire::Writer& out) {
        body_.clear();
        out.put(pick(handles_));
        for (int count = in_.u8() % 4; count; --count) {
            wire::MemoryOperation one{in_.u8() % 8u, in_.u8() % 4u, pick(addresses_) + in_.u8(),
                                      in_.get<uint64_t>()};
            if (one.type == CU_STREAM_MEM_OP_WAIT_VALUE_32 || one.type == CU_STREAM_MEM_OP_WAIT_VALUE_64)
                one.flags |= CU_STREAM_WAIT_VALUE_FLUSH;
            out.put(one);
        }
        const std::string_view cut_short = in_.take(in_.u8() % 8);
        out.bytes(cut_short.data(), cut_short.size());
    }

    void arguments(wire::Writer& out, int count) {
        for (int n = 0; n < count; ++n) switch (in_.u8() % 8) {
                case 0:
                    out.put(pick(handles_));
                    break;
                case 1:
                    out.put<uint64_t>(pick(addresses_) + in_.u8());
                    break;
                case 2:
                    out.put(in_.get<uint64_t>());
                    break;
                case 3:
                    out.put(in_.get<uint32_t>());
                    break;
                case 4:
                    out.put<uint32_t>(in_.u8());
                    break;
                case 5:
                    out.text(NAMES[in_.u8() % std::size(NAMES)]);
                    break;
                case 6:
                    out.put<uint64_t>(in_.u8());
                    break;
                case 7:
                    out.put<uint64_t>(wire::NAMED_BY_SHIM | in_.u8() % 8);
                    handles_.push_back(wire::NAMED_BY_SHIM | in_.u8() % 8);
                    break;
            }
    }

    bool send(uint16_t call) {
        if (is_left_out(call)) return true;
        wire::FrameHeader header{static_cast<uint32_t>(body_.size()), call, 0};
        if (in_.u8() == 0x5a) {  // says another length, and goes in the middle of it
            header.length = in_.get<uint32_t>();
            socket_.write(&header, sizeof header, body_.data(), body_.size());
            return false;
        }
        if (!socket_.write(&header, sizeof header, body_.data(), body_.size())) return false;
        const worker::ServedCall* served = worker::custom_call(call);
        if (!served) served = worker::driver_call(call);
        return served && (served->asynchronous || hear(call));
    }

    // The protocol's promises about answers hold whatever was asked.
    bool hear(uint16_t call) {
        struct {
            wire::FrameHeader header;
            uint32_t result, printed;
        } head;
        if (!socket_.read(&head.header, sizeof head.header)) return false;
        if (head.header.call != call || head.header.length < 8 || head.header.length > wire::MAX_BODY)
            std::abort();
        if (!socket_.read(&head.result, 8) || head.printed > head.header.length - 8) std::abort();
        std::vector<char> answer(head.header.length - 8);
        if (!socket_.read(answer.data(), answer.size())) std::abort();
        wire::Reader in(answer.data() + head.printed, answer.size() - head.printed);
        const std::string_view outputs = in.rest();
        if (head.result == CUDA_SUCCESS && outputs.size() >= 8) {
            learn(outputs.data());
            learn(outputs.data() + outputs.size() - 8);
        }
        return true;
    }
    void learn(const char* from) {
        uint64_t value;
        std::memcpy(&value, from, sizeof value);
        if (value >> 32)
            addresses_.push_back(value);
        else
            handles_.push_back(value);
    }
};
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    std::thread serving([fd = ends[1]] {
        wire::Channel channel{wire::Socket(fd)};
        std::mutex writing;
        worker::Session(lease(), channel, writing).serve();
    });
    Program(ends[0], Bytes(data, size)).run();
    serving.join();
    if (lease().memory_used() != 0) std::abort();  // what a program had goes with it
    if (lease().poisoned) heal();
    return 0;
}

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    lease();
    return 0;
}
