// The calls whose shape no table describes: device facts, images, launches, copies, linking.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "facts.h"
#include "session.h"
#include "wire/device_facts.h"
#include "wire/image.h"

namespace gpukernel::worker {

namespace {
using wire::Special;

CUresult device(Session& session, Reader&, Writer& out) {
    Driver& cuda = session.cuda();
    wire::DeviceFacts facts{};
    CUresult result = facts_of(cuda, session.device(), facts);
    if (result != CUDA_SUCCESS) return result;
    facts.memory_bytes = session.lease().memory_limit();
    // What cannot cross a network is not there, so that frameworks do not try it.
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
          CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
          CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED})
        facts.attributes[lacking] = 0;
    // The shim makes managed memory of mapped memory, whatever kind of it the device would have, and host
    // memory that the device reaches of managed memory.
    facts.attributes[CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] =
        facts.attributes[CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] =
            facts.attributes[CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED];
    facts.attributes[CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 1;  // the shim's, over cuMemAllocAsync
    facts.known[CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED] = 1;
    const Images& images = session.lease().images;
    facts.keeps_images = images.kept();
    std::memcpy(facts.image_salt, images.salt().data(), sizeof facts.image_salt);
    out.put(facts);
    return CUDA_SUCCESS;
}

// --- images ---

constexpr size_t LOG_BYTES = 16 << 10;

struct Log {
    char text[LOG_BYTES] = {};
    CUjit_option options[2] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[2] = {text, reinterpret_cast<void*>(LOG_BYTES)};
    std::string_view view() const { return {text, strnlen(text, LOG_BYTES)}; }
};

// The image at the end of a body, in it or by its name; a NUL stands behind it.
class Image {
  public:
    Image(const Images& images, Reader& in) {
        const auto form = in.get<uint8_t>();
        if (form == wire::whole_image) {
            bytes_ = in.rest();
            complete_ = !in.failed() && wire::whole(bytes_);
            if (complete_) images.keep(bytes_);
        } else if (form == wire::named_image) {
            held_.emplace(images.find(in.get<wire::Digest>()));
            named_ = true;
            if ((complete_ = static_cast<bool>(*held_))) bytes_ = held_->view();
        }
    }
    CUresult error() const {
        return complete_ ? CUDA_SUCCESS : named_ ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_IMAGE;
    }
    std::string_view bytes() const { return bytes_; }

  private:
    std::optional<Images::Held> held_;
    std::string_view bytes_;
    bool named_ = false, complete_ = false;
};

template <class Handle, class Function>
CUresult load(Session& session, Reader& in, Writer& out, Kind kind, Function function) {
    if (session.kept_error() != CUDA_SUCCESS) return session.kept_error();
    Lease& lease = session.lease();
    const Image image(lease.images, in);
    if (image.error() != CUDA_SUCCESS) return image.error();
    auto log = std::make_unique<Log>();
    Handle handle;
    std::lock_guard taking(lease.taking);
    const std::optional<uint64_t> before = lease.footprint.bytes();
    CUresult result = function(&handle, image.bytes().data(), *log);
    const std::optional<uint64_t> after = lease.footprint.bytes();
    if (result == CUDA_SUCCESS && before && after && *after > *before &&
        !lease.hold(handle, *after - *before)) {
        if constexpr (std::is_same_v<Handle, CUmodule>)
            session.cuda().cuModuleUnload(handle);
        else
            session.cuda().cuLibraryUnload(handle);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    out.text(log->view());
    if (result == CUDA_SUCCESS) out.put(session.name_of(handle, kind));
    return result;
}

CUresult load_image(Session& session, Reader& in, Writer& out) {
    return load<CUmodule>(session, in, out, Kind::module, [&](CUmodule* module, const void* image, Log& log) {
        return session.cuda().cuModuleLoadDataEx(module, image, 2, log.options, log.values);
    });
}

CUresult load_library(Session& session, Reader& in, Writer& out) {
    return load<CUlibrary>(session, in, out, Kind::library,
                           [&](CUlibrary* library, const void* image, Log& log) {
                               return session.cuda().cuLibraryLoadData(library, image, log.options,
                                                                       log.values, 2, nullptr, nullptr, 0);
                           });
}

CUresult kernel_layout(Session& session, Reader& in, Writer& out) {
    const auto name = in.get<uint64_t>();
    CUfunction function;
    if (!session.handle(name, Kind::function, function)) return CUDA_ERROR_INVALID_HANDLE;
    std::vector<std::pair<uint32_t, uint32_t>> parameters;
    for (size_t i = 0; i < 4096; ++i) {
        size_t offset = 0, size = 0;
        CUresult result = session.cuda().cuFuncGetParamInfo(function, i, &offset, &size);
        if (result == CUDA_ERROR_INVALID_VALUE) break;
        if (result != CUDA_SUCCESS) return result;
        parameters.emplace_back(offset, size);
    }
    out.put<uint32_t>(parameters.size());
    for (auto [offset, size] : parameters) out.put(offset), out.put(size);
    const char* text = nullptr;
    session.cuda().cuFuncGetName(&text, function);
    out.text(text ? text : "");
    int most_threads = 1024, registers = 0;
    session.cuda().cuFuncGetAttribute(&most_threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function);
    session.cuda().cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
    out.put<uint32_t>(most_threads), out.put<uint32_t>(registers);
    return CUDA_SUCCESS;
}

template <class Owner, class Handle, class Count, class Enumerate>
CUresult list(Session& session, uint64_t name, uint32_t room, Kind kind, Kind kind_of_each, Count count,
              Enumerate enumerate, Writer& out) {
    Owner owner;
    if (!session.handle(name, kind, owner)) return CUDA_ERROR_INVALID_HANDLE;
    unsigned have = 0;
    CUresult result = count(&have, owner);
    if (result != CUDA_SUCCESS) return result;
    std::vector<Handle> handles(std::min(room, have));
    if (!handles.empty()) result = enumerate(handles.data(), handles.size(), owner);
    if (result != CUDA_SUCCESS) return result;
    out.put<uint32_t>(handles.size());
    for (Handle handle : handles) out.put(session.name_of(handle, kind_of_each, owner));
    return CUDA_SUCCESS;
}

CUresult functions(Session& session, Reader& in, Writer& out) {
    const bool of_library = in.get<uint32_t>() != 0;
    const auto name = in.get<uint64_t>();
    const auto room = in.get<uint32_t>();
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    Driver& cuda = session.cuda();
    return of_library
               ? list<CUlibrary, CUkernel>(session, name, room, Kind::library, Kind::kernel,
                                           cuda.cuLibraryGetKernelCount, cuda.cuLibraryEnumerateKernels, out)
               : list<CUmodule, CUfunction>(session, name, room, Kind::module, Kind::function,
                                            cuda.cuModuleGetFunctionCount, cuda.cuModuleEnumerateFunctions,
                                            out);
}

CUresult reset(Session& session, Reader&, Writer&) {
    session.end_everything();
    return CUDA_SUCCESS;
}

// A launch as cuLaunchKernelEx and what asks about launches want it.
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

CUresult launch(Session& session, Reader& in, Writer&) {
    const auto head = in.get<wire::Launch>();
    CUfunction function;
    CUstream stream;
    if (in.failed() || !session.handle(head.function, Kind::function, function) ||
        !session.handle(head.stream, Kind::stream, stream))
        return CUDA_ERROR_INVALID_HANDLE;
    session.lease().turns.before_launch();
    std::string_view block = in.rest();
    size_t size = block.size();
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<char*>(block.data()),
                     CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    const unsigned* s = head.shape;
    if (head.mode == wire::LaunchMode{})
        return session.cuda().cuLaunchKernel(function, s[0], s[1], s[2], s[3], s[4], s[5], head.shared,
                                             stream, nullptr, size ? extra : nullptr);
    const LaunchConfiguration all(head, stream);
    return session.cuda().cuLaunchKernelEx(&all.config, function, nullptr, size ? extra : nullptr);
}

CUresult cluster_occupancy(Session& session, Reader& in, Writer& out) {
    const auto head = in.get<wire::Launch>();
    const auto active = in.get<uint8_t>();
    CUfunction function;
    if (in.failed() || !session.handle(head.function, Kind::function, function))
        return CUDA_ERROR_INVALID_HANDLE;
    const LaunchConfiguration all(head, nullptr);
    int count = 0;
    const CUresult result =
        active ? session.cuda().cuOccupancyMaxActiveClusters(&count, function, &all.config)
               : session.cuda().cuOccupancyMaxPotentialClusterSize(&count, function, &all.config);
    if (result == CUDA_SUCCESS) out.put<int32_t>(count);
    return result;
}

// --- the linker ---

CUresult link_create(Session& session, Reader&, Writer& out) {
    if (session.kept_error() != CUDA_SUCCESS) return session.kept_error();
    CUlinkState link;
    CUresult result = session.cuda().cuLinkCreate_v2(0, nullptr, nullptr, &link);
    if (result == CUDA_SUCCESS) out.put(session.name_of(link, Kind::link));
    return result;
}

CUresult link_add(Session& session, Reader& in, Writer& out) {
    const auto name = in.get<uint64_t>();
    const auto type = static_cast<CUjitInputType>(in.get<int32_t>());
    const std::string label(in.text());
    CUlinkState link;
    if (in.failed() || !session.handle(name, Kind::link, link)) return CUDA_ERROR_INVALID_HANDLE;
    const Image image(session.lease().images, in);
    if (image.error() != CUDA_SUCCESS) return image.error();
    const std::string_view bytes = image.bytes();
    std::vector<char>& kept = session.link_data(link, bytes.size() + 1);
    std::memcpy(kept.data(), bytes.data(), bytes.size());
    auto log = std::make_unique<Log>();
    CUresult result = session.cuda().cuLinkAddData_v2(link, type, kept.data(), bytes.size(), label.c_str(), 2,
                                                      log->options, log->values);
    out.text(log->view());
    return result;
}

CUresult link_complete(Session& session, Reader& in, Writer& out) {
    CUlinkState link;
    if (!session.handle(in.get<uint64_t>(), Kind::link, link)) return CUDA_ERROR_INVALID_HANDLE;
    void* image = nullptr;
    size_t bytes = 0;
    CUresult result = session.cuda().cuLinkComplete(link, &image, &bytes);
    out.text("");
    if (result == CUDA_SUCCESS) out.bytes(image, bytes);
    return result;
}

// --- who uses the slice, and how much ---

CUresult introduce(Session& session, Reader& in, Writer&) {
    const auto pid = in.get<uint32_t>();
    const auto command = in.text().substr(0, wire::MAX_COMMAND);
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    session.introduce(pid, command, in.get<uint64_t>());
    return CUDA_SUCCESS;
}

CUresult attend(Session& session, Reader& in, Writer&) {
    const auto key = in.get<uint64_t>();
    if (in.failed() || !key) return CUDA_ERROR_INVALID_VALUE;
    if (session.lease().attend) session.lease().attend(key);
    return CUDA_SUCCESS;
}

// --- host functions ---

CUresult host_function(Session& session, Reader& in, Writer&) {
    CUstream stream;
    const bool known = session.handle(in.get<uint64_t>(), Kind::stream, stream);
    const auto number = in.get<uint64_t>();
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    return session.host_functions()->hold(session.cuda(), known ? &stream : nullptr, number);
}

std::shared_ptr<HostFunctions> of_another(Session& session, Reader& in) {
    const auto key = in.get<uint64_t>();
    const auto& find = session.lease().host_functions_of;
    return in.failed() || !key || !find ? nullptr : find(key);
}

CUresult next_host_function(Session& session, Reader& in, Writer& out) {
    uint64_t number;
    CUresult status;
    auto functions = of_another(session, in);
    if (!functions) return CUDA_ERROR_INVALID_HANDLE;
    session.hear_of(functions);
    if (!functions->next(number, status)) return CUDA_ERROR_INVALID_HANDLE;
    out.put(number), out.put<int32_t>(status);
    return CUDA_SUCCESS;
}

CUresult host_function_done(Session& session, Reader& in, Writer&) {
    auto functions = of_another(session, in);
    const auto number = in.get<uint64_t>();
    if (!functions || in.failed()) return CUDA_ERROR_INVALID_HANDLE;
    functions->done(number);
    return CUDA_SUCCESS;
}

CUresult memory_operations(Session& session, Reader& in, Writer&) {
    CUstream stream;
    if (!session.handle(in.get<uint64_t>(), Kind::stream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    const std::string_view bytes = in.rest();
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
            case CU_STREAM_MEM_OP_WRITE_VALUE_32:
            case CU_STREAM_MEM_OP_WRITE_VALUE_64:
                break;
            default:
                return CUDA_ERROR_NOT_SUPPORTED;
        }
        // What is written is laid out in the same way.
        operation.waitValue = {operation.operation, asked.address, {.value64 = asked.value}, asked.flags, 0};
        const bool wide = operation.operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 ||
                          operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
        if (!session.lease().valid(asked.address, wide ? 8 : 4)) return CUDA_ERROR_INVALID_VALUE;
    }
    return session.cuda().cuStreamBatchMemOp_v2(stream, operations.size(), operations.data(), 0);
}

CUresult usage(Session& session, Reader& in, Writer& out) {
    Lease& lease = session.lease();
    const auto programs = lease.programs();
    out.put(lease.memory_limit()), out.put(lease.memory_used());
    out.put(lease.gpu_seconds()), out.put(lease.gpu_share());
    out.put<uint32_t>(programs.size());
    for (const Lease::Program& program : programs) {
        out.put(program.pid), out.put(program.bytes);
        out.text(program.command);
    }
    out.put(lease.recent_peak(!in.rest().empty()));
    out.put<uint64_t>(lease.launches);
    return CUDA_SUCCESS;
}

// --- questions ---

CUresult pointer_attribute(Session& session, Reader& in, Writer& out) {
    const auto attribute = static_cast<CUpointer_attribute>(in.get<int32_t>());
    const auto address = in.get<CUdeviceptr>();
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        case CU_POINTER_ATTRIBUTE_MAPPED:
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            break;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (!session.lease().valid(address, 1)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t value = 0;
    CUresult result = session.cuda().cuPointerGetAttribute(&value, attribute, address);
    if (result == CUDA_SUCCESS) out.put(value);
    return result;
}

CUresult best_block_size(Session& session, Reader& in, Writer& out) {
    const auto name = in.get<uint64_t>(), shared = in.get<uint64_t>();
    const auto limit = in.get<int32_t>();
    CUfunction function;
    if (in.failed() || !session.handle(name, Kind::function, function)) return CUDA_ERROR_INVALID_HANDLE;
    int grid = 0, block = 0;
    CUresult result = session.cuda().cuOccupancyMaxPotentialBlockSizeWithFlags(&grid, &block, function,
                                                                               nullptr, shared, limit, 0);
    if (result == CUDA_SUCCESS) out.put<int32_t>(grid), out.put<int32_t>(block);
    return result;
}

CUresult virtual_memory(Session& session, Reader& in, Writer& out) {
    return session.virtual_memory().serve(in, out);
}

constexpr Served specials[] = {
    {"device", device, false, true},
    {"load_image", load_image, false},
    {"load_library", load_library, false},
    {"kernel_layout", kernel_layout, false},
    {"launch", launch, true},
    {"copy_to_device", nullptr, true},  // Session::take_bulk
    {"copy_to_host", nullptr, false},   // Session::give_bulk
    {"link_create", link_create, false},
    {"link_add", link_add, false},
    {"link_complete", link_complete, false},
    {"pointer_attribute", pointer_attribute, false},
    {"best_block_size", best_block_size, false},
    {"share_memory", nullptr, false},  // Session::share_memory
    {"introduce", introduce, true},
    {"usage", usage, false, true},
    {"functions", functions, false},
    {"reset", reset, false},
    {"copy_box", copy_box, true},
    {"box_to_device", box_to_device, true},
    {"box_to_host", box_to_host, false},
    {"attend", attend, true, true},
    {"virtual_memory", virtual_memory, false},
    {"host_function", host_function, true},
    {"next_host_function", next_host_function, false, true},
    {"host_function_done", host_function_done, true, true},
    {"cluster_occupancy", cluster_occupancy, false},
    {"memory_operations", memory_operations, true},
};
static_assert(std::size(specials) ==
              static_cast<size_t>(Special::memory_operations) - wire::FIRST_SPECIAL + 1);
}  // namespace

const Served* special_call(uint16_t number) {
    const size_t index = static_cast<size_t>(number) - wire::FIRST_SPECIAL;
    return number >= wire::FIRST_SPECIAL && index < std::size(specials) ? &specials[index] : nullptr;
}

}  // namespace gpukernel::worker
