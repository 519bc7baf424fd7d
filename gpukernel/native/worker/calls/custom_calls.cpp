// The handlers of the protocol's own calls: device facts, images, launches, linking, usage.  Their layouts
// are those of codegen/calls.txt.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "common/image.h"
#include "wire/device_facts.h"
#include "worker/lease/facts.h"
#include "worker/lease/measured.h"

namespace gpukernel::worker {

#include "worker_custom_calls.inc"

CUresult serve_device(Session& session, Reader&, Writer& out) {
    Driver& cuda = session.cuda();
    wire::DeviceFacts facts{};
    CUresult result = facts_of(cuda, session.device(), facts);
    if (result != CUDA_SUCCESS) return result;
    facts.memory_bytes = session.lease().memory_limit();
    // Features that cannot cross a network are reported as missing, so that frameworks do not try them.
    for (int lacking :
         {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
          CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
          CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
          CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
          CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
          CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
          CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
          CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
          CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
          CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED})
        facts.attributes[lacking] = 0;
    // The shim implements managed memory over mapped virtual memory, whatever the device supports itself, and
    // mapped host memory over managed memory.
    facts.attributes[CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] =
        facts.attributes[CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] =
            facts.attributes[CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED];
    // So are mirrors of registered memory.
    for (int ours : {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED,
                     CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED}) {
        facts.attributes[ours] = facts.attributes[CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED];
        facts.known[ours] = 1;
    }
    facts.attributes[CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED] = 1;  // among the programs of the lease
    facts.known[CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED] = 1;
    facts.attributes[CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 1;  // in the shim, over cuMemAllocAsync
    facts.known[CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 1;
    facts.attributes[0] = wire::KEEPS_BLOCKS | wire::HAS_MANAGED_VARIABLES | wire::HAS_BORDER_COLORS |
                          wire::TELLS_OF_STREAMS | wire::TELLS_OF_REFUSALS | wire::READS_MORE_EARLY;
    if (session.cuda().set_range) facts.attributes[0] |= wire::WANTS_RANGES;
    if (facts.attributes[CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED])
        facts.attributes[0] |= wire::SHARES_PHYSICAL;
    const Images& images = session.lease().images;
    facts.keeps_images = images.kept();
    std::memcpy(facts.image_salt, images.salt().data(), sizeof facts.image_salt);
    wire::DeviceAnswer{facts}.write(out);
    return CUDA_SUCCESS;
}

// --- images ---

namespace {
constexpr size_t LOG_BYTES = 16 << 10;

// The options of a compilation whose log the program gets.
struct Log {
    char text[LOG_BYTES] = {};
    CUjit_option options[2] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[2] = {text, reinterpret_cast<void*>(LOG_BYTES)};
    std::string_view view() const { return {text, strnlen(text, LOG_BYTES)}; }
};

// The image of a request, which carries it whole or by its name; a NUL follows its bytes.
class Image {
  public:
    Image(Lease& lease, uint8_t form, std::string_view image) : charge_(lease.host_memory) {
        const Images& images = lease.images;
        if (form == wire::whole_image) {
            bytes_ = image;
            complete_ = wire::whole(bytes_);
            if (complete_) images.keep(bytes_);
        } else if (form == wire::named_image) {
            mapped_.emplace(images.find(
                Reader(image.data(), image.size()).get<wire::Digest>(),
                [this](uint64_t bytes) { return charge_.grow(bytes); }, beyond_));
            named_ = true;
            if ((complete_ = static_cast<bool>(*mapped_))) bytes_ = mapped_->view();
        }
    }
    CUresult error() const {
        return complete_ ? CUDA_SUCCESS
               : beyond_ ? CUDA_ERROR_OUT_OF_MEMORY
               : named_  ? CUDA_ERROR_FILE_NOT_FOUND
                         : CUDA_ERROR_INVALID_IMAGE;
    }
    std::string_view bytes() const { return bytes_; }

  private:
    HostCharge charge_;  // of the copy
    std::optional<Images::Mapped> mapped_;
    std::string_view bytes_;
    bool named_ = false, complete_ = false, beyond_ = false;
};

template <class Handle, class Request, class Answer, class Function>
CUresult load(Session& session, Reader& in, Writer& out, Kind kind, Function function) {
    if (session.kept_error() != CUDA_SUCCESS) return session.kept_error();
    Lease& lease = session.lease();
    const auto request = Request::read(in);
    const Image image(lease, request.form, request.image);
    if (image.error() != CUDA_SUCCESS) return image.error();
    auto log = std::make_unique<Log>();
    auto host = session.host_charge(HostMemory::MODULE + 2 * image.bytes().size());
    if (!host) return CUDA_ERROR_OUT_OF_MEMORY;
    Handle handle = nullptr;
    // Where the device does not say what this process holds, the image is all that is known.
    const uint64_t least = lease.footprint.bytes() ? 0 : charge(image.bytes().size());
    const CUresult result = make_charged(
        session, least, nullptr, handle,
        [&](Handle* made) {
            log->text[0] = 0;
            return function(made, image.bytes().data(), *log);
        },
        [&](Handle made) {
            if constexpr (std::is_same_v<Handle, CUmodule>)
                return session.cuda().cuModuleUnload(made);
            else
                return session.cuda().cuLibraryUnload(made);
        });
    Answer answer{log->view(), std::nullopt};
    if (result == CUDA_SUCCESS) answer.handle = session.number_of(handle, kind, nullptr, std::move(*host));
    answer.write(out);
    return result;
}
}  // namespace

CUresult serve_load_image(Session& session, Reader& in, Writer& out) {
    return load<CUmodule, wire::LoadImageRequest, wire::LoadImageAnswer>(
        session, in, out, Kind::module, [&](CUmodule* module, const void* image, Log& log) {
            return session.cuda().cuModuleLoadDataEx(module, image, 2, log.options, log.values);
        });
}

CUresult serve_load_library(Session& session, Reader& in, Writer& out) {
    return load<CUlibrary, wire::LoadLibraryRequest, wire::LoadLibraryAnswer>(
        session, in, out, Kind::library, [&](CUlibrary* library, const void* image, Log& log) {
            // Where the driver compiles it later, nothing is there any more that it could write to.
            const unsigned logs = session.lease().loads_lazily ? 0 : 2;
            return session.cuda().cuLibraryLoadData(library, image, log.options, log.values, logs, nullptr,
                                                    nullptr, 0);
        });
}

CUresult serve_kernel_layout(Session& session, Reader& in, Writer& out) {
    CUfunction function;
    if (!session.handle(wire::KernelLayoutRequest::read(in).function, Kind::function, function))
        return CUDA_ERROR_INVALID_HANDLE;
    wire::KernelLayoutAnswer answer;
    for (size_t i = 0; i < 4096; ++i) {
        size_t offset = 0, size = 0;
        CUresult result = session.cuda().cuFuncGetParamInfo(function, i, &offset, &size);
        if (result == CUDA_ERROR_INVALID_VALUE) break;
        if (result != CUDA_SUCCESS) return result;
        answer.parameters.push_back({static_cast<uint32_t>(offset), static_cast<uint32_t>(size)});
    }
    const char* text = nullptr;
    session.cuda().cuFuncGetName(&text, function);
    answer.name = text ? text : "";
    int most_threads = 1024, registers = 0;
    session.cuda().cuFuncGetAttribute(&most_threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function);
    session.cuda().cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
    answer.most_threads = most_threads, answer.registers = registers;
    answer.write(out);
    return CUDA_SUCCESS;
}

namespace {
template <class Owner, class Handle, class Count, class Enumerate>
CUresult list(Session& session, const wire::FunctionsRequest& request, Kind kind, Kind kind_of_each,
              Count count, Enumerate enumerate, Writer& out) {
    Owner owner;
    if (!session.handle(request.owner, kind, owner)) return CUDA_ERROR_INVALID_HANDLE;
    unsigned have = 0;
    CUresult result = count(&have, owner);
    if (result != CUDA_SUCCESS) return result;
    std::vector<Handle> handles(std::min(request.most, have));
    if (!handles.empty()) result = enumerate(handles.data(), handles.size(), owner);
    if (result != CUDA_SUCCESS) return result;
    wire::FunctionsAnswer answer;
    for (Handle handle : handles) answer.handles.push_back(session.number_of(handle, kind_of_each, owner));
    answer.write(out);
    return CUDA_SUCCESS;
}
}  // namespace

CUresult serve_functions(Session& session, Reader& in, Writer& out) {
    const auto request = wire::FunctionsRequest::read(in);
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    Driver& cuda = session.cuda();
    return request.of_library
               ? list<CUlibrary, CUkernel>(session, request, Kind::library, Kind::kernel,
                                           cuda.cuLibraryGetKernelCount, cuda.cuLibraryEnumerateKernels, out)
               : list<CUmodule, CUfunction>(session, request, Kind::module, Kind::function,
                                            cuda.cuModuleGetFunctionCount, cuda.cuModuleEnumerateFunctions,
                                            out);
}

CUresult serve_reset(Session& session, Reader&, Writer&) {
    session.release_everything();
    return CUDA_SUCCESS;
}

namespace {
// The configuration of a launch as cuLaunchKernelEx and the occupancy functions take it.
struct LaunchConfiguration {
    CUlaunchAttribute attributes[2] = {};
    CUlaunchConfig config;
    LaunchConfiguration(const wire::Launch& launch, CUstream stream)
        : config{launch.shape[0], launch.shape[1], launch.shape[2], launch.shape[3], launch.shape[4],
                 launch.shape[5], launch.shared,   stream,          attributes,      0} {
        if (launch.mode.cooperative) {
            CUlaunchAttribute& one = attributes[config.numAttrs++];
            one.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, one.value.cooperative = 1;
        }
        const uint8_t* cluster = launch.mode.cluster;
        if (cluster[0] || cluster[1] || cluster[2]) {
            CUlaunchAttribute& one = attributes[config.numAttrs++];
            one.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            one.value.clusterDim = {cluster[0], cluster[1], cluster[2]};
        }
    }
    LaunchConfiguration(const LaunchConfiguration&) = delete;
};

CUresult launch(Session& session, const wire::Launch& head, std::string_view parameters) {
    CUfunction function;
    CUstream stream;
    if (!session.handle(head.function, Kind::function, function) ||
        !session.handle(head.stream, Kind::stream, stream))
        return CUDA_ERROR_INVALID_HANDLE;
    session.lease().time_slicing.before_launch();
    session.memory_checks.apply(session.cuda().set_memory_check);
    size_t size = parameters.size();
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<char*>(parameters.data()),
                     CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    const unsigned* s = head.shape;
    if (head.mode == wire::LaunchMode{})
        return session.cuda().cuLaunchKernel(function, s[0], s[1], s[2], s[3], s[4], s[5], head.shared,
                                             stream, nullptr, size ? extra : nullptr);
    const LaunchConfiguration all(head, stream);
    return session.cuda().cuLaunchKernelEx(&all.config, function, nullptr, size ? extra : nullptr);
}

}  // namespace

CUresult serve_launch(Session& session, Reader& in, Writer&) {
    const auto [head, parameters] = wire::LaunchRequest::read(in);
    return in.failed() ? CUDA_ERROR_INVALID_HANDLE : launch(session, head, parameters);
}

CUresult serve_launch_in_range(Session& session, Reader& in, Writer&) {
    const auto [head, range, parameters] = wire::LaunchInRangeRequest::read(in);
    if (in.failed()) return CUDA_ERROR_INVALID_HANDLE;
    const SetRange set = session.cuda().set_range;
    if (set) set(range.data(), range.size());
    const CUresult result = launch(session, head, parameters);
    if (set) set(nullptr, 0);
    return result;
}

CUresult serve_cluster_occupancy(Session& session, Reader& in, Writer& out) {
    const auto [head, active] = wire::ClusterOccupancyRequest::read(in);
    CUfunction function;
    if (in.failed() || !session.handle(head.function, Kind::function, function))
        return CUDA_ERROR_INVALID_HANDLE;
    const LaunchConfiguration all(head, nullptr);
    int count = 0;
    const CUresult result =
        active ? session.cuda().cuOccupancyMaxActiveClusters(&count, function, &all.config)
               : session.cuda().cuOccupancyMaxPotentialClusterSize(&count, function, &all.config);
    if (result == CUDA_SUCCESS) wire::ClusterOccupancyAnswer{count}.write(out);
    return result;
}

// --- the linker ---

CUresult serve_link_create(Session& session, Reader&, Writer& out) {
    if (session.kept_error() != CUDA_SUCCESS) return session.kept_error();
    CUlinkState link;
    auto host = session.host_charge(HostMemory::LINK);
    if (!host) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = session.cuda().cuLinkCreate_v2(0, nullptr, nullptr, &link);
    if (result == CUDA_SUCCESS)
        wire::LinkCreateAnswer{session.number_of(link, Kind::link, nullptr, std::move(*host))}.write(out);
    return result;
}

CUresult serve_link_add(Session& session, Reader& in, Writer& out) {
    const auto request = wire::LinkAddRequest::read(in);
    const std::string label(request.label);
    CUlinkState link;
    if (in.failed() || !session.handle(request.link, Kind::link, link)) return CUDA_ERROR_INVALID_HANDLE;
    const Image image(session.lease(), request.form, request.image);
    if (image.error() != CUDA_SUCCESS) return image.error();
    const std::string_view bytes = image.bytes();
    std::vector<char>* const kept = session.link_data(link, bytes.size() + 1);
    if (!kept) return CUDA_ERROR_OUT_OF_MEMORY;
    std::memcpy(kept->data(), bytes.data(), bytes.size());
    auto log = std::make_unique<Log>();
    CUresult result =
        session.cuda().cuLinkAddData_v2(link, static_cast<CUjitInputType>(request.type), kept->data(),
                                        bytes.size(), label.c_str(), 2, log->options, log->values);
    wire::LinkAddAnswer{log->view()}.write(out);
    return result;
}

CUresult serve_link_complete(Session& session, Reader& in, Writer& out) {
    CUlinkState link;
    if (!session.handle(wire::LinkCompleteRequest::read(in).link, Kind::link, link))
        return CUDA_ERROR_INVALID_HANDLE;
    void* image = nullptr;
    size_t bytes = 0;
    CUresult result = session.cuda().cuLinkComplete(link, &image, &bytes);
    if (result != CUDA_SUCCESS) bytes = 0;
    wire::LinkCompleteAnswer{"", {static_cast<const char*>(image), bytes}}.write(out);
    return result;
}

// --- usage of the slice ---

CUresult serve_introduce(Session& session, Reader& in, Writer&) {
    const auto request = wire::IntroduceRequest::read(in);
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    session.introduce(request.pid, request.command.substr(0, wire::MAX_COMMAND), request.key.value_or(0));
    session.memory_checks.be_strict(request.strict.value_or(0) != 0);
    return CUDA_SUCCESS;
}

CUresult serve_attend(Session& session, Reader& in, Writer&) {
    const auto [key] = wire::AttendRequest::read(in);
    if (in.failed() || !key) return CUDA_ERROR_INVALID_VALUE;
    if (session.lease().attend) session.lease().attend(key);
    return CUDA_SUCCESS;
}

// --- host functions ---

// The reads that come with a host function or a report; false where they are none.
static bool expected_reads(Session& session, std::string_view bytes, std::vector<wire::EarlyRead>& reads) {
    reads.resize(bytes.size() / sizeof(wire::EarlyRead));
    if (reads.size() > wire::MOST_EARLY_READS) return false;
    if (reads.empty()) return true;
    std::memcpy(reads.data(), bytes.data(), reads.size() * sizeof reads[0]);
    uint64_t left = wire::MOST_EARLY_BYTES;
    for (const wire::EarlyRead& read : reads) {
        if (read.bytes > left) return false;
        left -= read.bytes;
    }
    session.lease().early_reads.prepare();
    return true;
}

CUresult serve_host_function(Session& session, Reader& in, Writer&) {
    CUstream stream;
    const auto request = wire::HostFunctionRequest::read(in);
    const bool known = session.handle(request.stream, Kind::stream, stream);
    std::vector<wire::EarlyRead> reads;
    if (in.failed() || !expected_reads(session, request.reads, reads)) return CUDA_ERROR_INVALID_VALUE;
    session.waits_for_host();
    return session.host_functions()->add_gate(session.cuda(), known ? &stream : nullptr, request.number,
                                              std::move(reads));
}

// The host functions of the program with `key`; nullptr where there is none.
static std::shared_ptr<HostFunctions> host_functions_of(Session& session, uint64_t key) {
    const auto& find = session.lease().host_functions_of;
    return !key || !find ? nullptr : find(key);
}

CUresult serve_next_host_function(Session& session, Reader& in, Writer& out) {
    HostFunctions::Reached reached;
    const auto [key] = wire::NextHostFunctionRequest::read(in);
    auto functions = in.failed() ? nullptr : host_functions_of(session, key);
    if (!functions) return CUDA_ERROR_INVALID_HANDLE;
    session.follow(functions);
    if (!functions->next(reached)) return CUDA_ERROR_INVALID_HANDLE;
    const std::vector<char> early = functions->read_early(reached);
    wire::NextHostFunctionAnswer{
        reached.number, static_cast<int32_t>(reached.status), {early.data(), early.size()}}
        .write(out);
    return CUDA_SUCCESS;
}

CUresult serve_host_function_done(Session& session, Reader& in, Writer&) {
    const auto [key, number] = wire::HostFunctionDoneRequest::read(in);
    auto functions = in.failed() ? nullptr : host_functions_of(session, key);
    if (!functions) return CUDA_ERROR_INVALID_HANDLE;
    functions->done(number);
    return CUDA_SUCCESS;
}

CUresult serve_report(Session& session, Reader& in, Writer&) {
    CUstream stream;
    const auto request = wire::ReportRequest::read(in);
    std::vector<wire::EarlyRead> reads;
    if (in.failed() || !expected_reads(session, request.reads, reads)) return CUDA_ERROR_INVALID_VALUE;
    // Where it cannot be made, the program hears nothing and asks.
    if (session.handle(request.stream, Kind::stream, stream))
        session.host_functions()->add_report(session.cuda(), stream, request.number, std::move(reads));
    return CUDA_SUCCESS;
}

CUresult serve_memory_operations(Session& session, Reader& in, Writer&) {
    CUstream stream;
    const auto [name, bytes] = wire::MemoryOperationsRequest::read(in);
    if (!session.handle(name, Kind::stream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    std::vector<CUstreamBatchMemOpParams> operations(bytes.size() / sizeof(wire::MemoryOperation));
    if (operations.empty() || operations.size() > wire::MOST_MEMORY_OPERATIONS)
        return CUDA_ERROR_INVALID_VALUE;
    for (CUstreamBatchMemOpParams& operation : operations) {
        wire::MemoryOperation asked;
        std::memcpy(&asked, bytes.data() + (&operation - operations.data()) * sizeof asked, sizeof asked);
        operation = {static_cast<CUstreamBatchMemOpType>(asked.type)};
        switch (operation.operation) {
            case CU_STREAM_MEM_OP_BARRIER:
                operation.memoryBarrier.flags = asked.flags;
                continue;
            case CU_STREAM_MEM_OP_WAIT_VALUE_32:
            case CU_STREAM_MEM_OP_WAIT_VALUE_64:
                session.waits_for_host();
                break;
            case CU_STREAM_MEM_OP_WRITE_VALUE_32:
            case CU_STREAM_MEM_OP_WRITE_VALUE_64:
                break;
            default:
                return CUDA_ERROR_NOT_SUPPORTED;
        }
        // The structure of writes has the same layout.
        operation.waitValue = {operation.operation, asked.address, {.value64 = asked.value}, asked.flags, 0};
        const bool wide = operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
                          operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
        if (!session.lease().valid(asked.address, wide ? 8 : 4)) return CUDA_ERROR_INVALID_VALUE;
    }
    return session.cuda().cuStreamBatchMemOp_v2(stream, operations.size(), operations.data(), 0);
}

CUresult serve_plain_conditions(Session& session, Reader&, Writer&) {
    return session.cuda().simulated() ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult serve_usage(Session& session, Reader& in, Writer& out) {
    Lease& lease = session.lease();
    const auto programs = lease.programs();
    wire::UsageAnswer answer{
        lease.memory_limit(), lease.memory_used(), lease.gpu_seconds(), lease.gpu_share(), {}, {}, {}};
    for (const Lease::Program& program : programs)
        answer.programs.push_back({program.pid, program.bytes, program.command});
    answer.peak = lease.recent_peak(wire::UsageRequest::read(in).begin_anew.has_value());
    answer.launches = lease.launches;
    answer.write(out);
    return CUDA_SUCCESS;
}

// --- queries ---

CUresult serve_pointer_attribute(Session& session, Reader& in, Writer& out) {
    const auto request = wire::PointerAttributeRequest::read(in);
    const auto attribute = static_cast<CUpointer_attribute>(request.attribute);
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        case CU_POINTER_ATTRIBUTE_MAPPED:
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
            break;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (!session.lease().valid(request.address, 1)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t value = session.lease().has_name(request.address);
    CUresult result = CUDA_SUCCESS;
    if (attribute != CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE) {
        value = 0;
        result = session.cuda().cuPointerGetAttribute(&value, attribute, request.address);
    }
    if (result == CUDA_SUCCESS) wire::PointerAttributeAnswer{value}.write(out);
    return result;
}

CUresult serve_virtual_memory(Session& session, Reader& in, Writer& out) {
    return session.virtual_memory().serve(in, out);
}

const ServedCall* custom_call(uint16_t number) {
    if (number < wire::FIRST_CUSTOM_CALL || number >= static_cast<uint16_t>(wire::CustomCall::end))
        return nullptr;
    return &custom_calls[number - wire::FIRST_CUSTOM_CALL];
}

}  // namespace gpukernel::worker
