// Device and host memory, copies, fills (driver API chapter "Memory Management").
#include <emmintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include "common/checked.h"
#include "simgpu/driver/memory/arrays.h"
#include "simgpu/driver/memory/managed.h"

using namespace gpukernel::simgpu;

namespace {
void* at(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

constexpr size_t MUCH = 16 << 20;    // that is copied or filled between two looks whether it is cancelled
constexpr size_t BEYOND = 64 << 20;  // more than its reader finds in a cache

void stream_line(char* to, const char* from) {
    __m128i part[4];
    for (int i = 0; i < 4; ++i) part[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i);
    for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, part[i]);
}

// Stores past the caches, for which nothing is read first, in several pages by turns: from one alone memory
// comes at seven tenths of the speed.  The C library does so where one copy is larger than a part of the
// cache, which pieces are not.
void stream_past_caches(char* to, const char* from, size_t bytes) {
    constexpr size_t LINE = 64, PAGE = 4096, PAGES = 8, AHEAD = 2 * LINE;
    const size_t head = -reinterpret_cast<uintptr_t>(to) % LINE;
    std::memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    for (; bytes >= PAGES * PAGE; to += PAGES * PAGE, from += PAGES * PAGE, bytes -= PAGES * PAGE)
        for (size_t line = 0; line < PAGE; line += LINE)
            for (size_t page = 0; page < PAGES * PAGE; page += PAGE) {
                _mm_prefetch(from + page + line + AHEAD, _MM_HINT_T0);
                stream_line(to + page + line, from + page + line);
            }
    for (; bytes >= LINE; to += LINE, from += LINE, bytes -= LINE) stream_line(to, from);
    _mm_sfence();
    std::memcpy(to, from, bytes);
}

// Copies nothing where there are no bytes, whatever the pointers are.
void transfer(void* to, const void* from, size_t bytes) {
    char* t = static_cast<char*>(to);
    const char* f = static_cast<const char*>(from);
    if (t < f + bytes && f < t + bytes)
        return bytes && !cancelled() ? void(std::memmove(t, f, bytes)) : void();
    const auto copy =
        bytes >= BEYOND ? stream_past_caches : [](char* a, const char* b, size_t n) { std::memcpy(a, b, n); };
    for (size_t piece; bytes && !cancelled(); t += piece, f += piece, bytes -= piece) {
        piece = std::min(bytes, MUCH);
        copy(t, f, piece);
    }
}

bool on_device(Device* device, const void* pointer) {
    return device->memory->find(reinterpret_cast<uint64_t>(pointer)).has_value();
}

bool pinned(Device* device, const void* pointer, size_t bytes) {
    std::lock_guard lock(device->mutex);
    auto it = device->pinned.upper_bound(reinterpret_cast<uint64_t>(pointer));
    if (it == device->pinned.begin()) return false;
    --it;
    return reinterpret_cast<uint64_t>(pointer) + bytes <= it->first + it->second;
}

// The flags of host memory that the device reaches, if `address` lies in some.
std::optional<unsigned> mapped(Device* device, CUdeviceptr address) {
    const auto block = device->memory->find(address);
    std::lock_guard lock(device->mutex);
    const auto it = block ? device->mapped.find(block->address) : device->mapped.end();
    return it == device->mapped.end() ? std::nullopt : std::optional(it->second);
}

bool outside(Device* device, CUdeviceptr address, size_t bytes, bool writing = false) {
    return bytes && !device->memory->valid(address, bytes, writing);
}

// The block that a pointer lies in: an allocation, or one mapping of physical memory.
constexpr uint64_t MAPPED = uint64_t{1}
                            << 63;  // keeps the numbers of physical memory from those of allocations
std::optional<DeviceMemory::Block> block_of(Device* device, CUdeviceptr address) {
    auto block = device->memory->find(address);
    if (auto mapping = block ? device->memory->virtual_memory().mapping(address) : std::nullopt)
        return DeviceMemory::Block{mapping->address, mapping->bytes, true, MAPPED | mapping->handle};
    return block;
}

constexpr size_t SMALL = 64 << 10;
constexpr size_t MOST_STAGED = 64 << 20;
std::atomic<size_t> staged{0};  // bytes that were taken from pageable memory and are not copied yet

// A device may write what was taken from pageable memory after the call has returned ("API synchronization
// behavior"); this one does so where GPUKERNEL_SIMGPU_COPIES is LATE, which shows who does not wait for it.
constexpr std::chrono::milliseconds LATE{3};
bool copies_are_late() {
    static const bool late = [] {
        const char* const copies = std::getenv("GPUKERNEL_SIMGPU_COPIES");
        return copies && copies == std::string_view("LATE");
    }();
    return late;
}

CUresult to_device(Device* device, Stream* stream, CUdeviceptr destination, const void* source, size_t bytes,
                   bool wait) {
    if (outside(device, destination, bytes, true) || (bytes && !source)) return CUDA_ERROR_INVALID_VALUE;
    const bool late = !wait && copies_are_late();
    const bool busy = late || !schedule().idle(*stream), from_pinned = pinned(device, source, bytes);
    if (from_pinned && !wait && (busy || bytes > SMALL))
        return in_order(device, stream, [=] { transfer(at(destination), source, bytes); });
    // Pageable memory may change as soon as the call returns: take the bytes now, as CUDA does, and like it
    // ("API synchronization behavior") wait with more than 64 KiB, so that a queue of copies stays small.
    if (busy && !from_pinned && bytes <= SMALL && staged < MOST_STAGED && take_host_memory(bytes)) {
        staged += bytes;
        std::shared_ptr<char> taken(new char[bytes], [bytes](char* p) {
            delete[] p, staged -= bytes;
            give_back_host_memory(bytes);
        });
        transfer(taken.get(), source, bytes);
        return in_order(device, stream, [=] {
            if (late) std::this_thread::sleep_for(LATE);
            transfer(at(destination), taken.get(), bytes);
        });
    }
    const auto copy = [=] { transfer(at(destination), source, bytes); };
    schedule().perform(*stream, std::cref(copy));
    return device->sticky_error();
}

CUresult to_host(Device* device, Stream* stream, void* destination, CUdeviceptr source, size_t bytes) {
    if (outside(device, source, bytes) || (bytes && !destination)) return CUDA_ERROR_INVALID_VALUE;
    if (pinned(device, destination, bytes))
        return in_order(device, stream, [=] { transfer(destination, at(source), bytes); });
    return wait_and(device, stream, [=] { transfer(destination, at(source), bytes); });
}

CUresult on_the_device(Device* device, Stream* stream, CUdeviceptr destination, CUdeviceptr source,
                       size_t bytes) {
    if (outside(device, destination, bytes, true) || outside(device, source, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return in_order(device, stream, [=] { transfer(at(destination), at(source), bytes); });
}

CUresult anywhere(Device* device, Stream* stream, CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
    bool to = on_device(device, at(destination)), from = on_device(device, at(source));
    if (to && from) return on_the_device(device, stream, destination, source, bytes);
    if (to) return to_device(device, stream, destination, at(source), bytes, false);
    if (from) return to_host(device, stream, at(destination), source, bytes);
    return in_order(device, stream, [=] { transfer(at(destination), at(source), bytes); });
}

template <class T>
CUresult fill(CUstream handle, CUdeviceptr address, size_t pitch, T value, size_t width, size_t height) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(handle, stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (address % sizeof(T)) return CUDA_ERROR_INVALID_VALUE;
    if (!width || !height) return CUDA_SUCCESS;
    // Rows that overlap could be so many that filling them never ends.
    if (height > 1 && (pitch % sizeof(T) || pitch / sizeof(T) < width)) return CUDA_ERROR_INVALID_VALUE;
    const auto row = gpukernel::checked_product(width, sizeof(T));
    const auto span = row ? gpukernel::checked_extent(height, pitch, *row) : std::nullopt;
    if (!span || outside(device, address, *span, true)) return CUDA_ERROR_INVALID_VALUE;
    return in_order(device, stream, [=] {
        for (size_t row = 0; row < height; ++row)
            for (size_t x = 0; x < width && !cancelled(); x += MUCH / sizeof(T)) {
                T* to = reinterpret_cast<T*>(address + row * pitch) + x;
                std::fill(to, to + std::min(width - x, MUCH / sizeof(T)), value);
            }
    });
}

struct CopySide {
    CUmemorytype type;
    CUarray array;
    uint64_t base;
    size_t pitch, height, x, y, z;
};

CopySide side(CUmemorytype type, const void* host, CUdeviceptr device, CUarray array, size_t pitch,
              size_t height, size_t x, size_t y, size_t z) {
    uint64_t base = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host) : device;
    return {type, array, base, pitch, height, x, y, z};
}

// Where the rows of a copy begin, and how many bytes lie from there to the last one's end; false where that
// is more than there are addresses.
bool find_rows(CopySide& s, size_t width, size_t height, size_t depth, uint64_t& first, size_t& span) {
    bool fits = true;
    const auto sum = [&](size_t a, size_t b) {
        const auto result = gpukernel::checked_sum(a, b);
        fits &= result.has_value();
        return result.value_or(0);
    };
    const auto product = [&](size_t a, size_t b) {
        const auto result = gpukernel::checked_product(a, b);
        fits &= result.has_value();
        return result.value_or(0);
    };
    if (!s.pitch) s.pitch = sum(s.x, width);
    if (!s.height) s.height = sum(s.y, height);
    first = sum(s.base, sum(product(sum(product(s.z, s.height), s.y), s.pitch), s.x));
    span = sum(product(sum(product(depth - 1, s.height), height - 1), s.pitch), width);
    sum(first, span);
    return fits;
}

CUresult copy_pitched(CUstream handle, CopySide from, CopySide to, size_t width, size_t height,
                      size_t depth) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(handle, stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (!width || !height || !depth) return CUDA_SUCCESS;
    for (CopySide* s : {&from, &to}) {
        if (s->type == CU_MEMORYTYPE_ARRAY) {
            CUresult error = rows_of(device, s->array, s->x, s->y, s->z, width, height, depth, s->base,
                                     s->pitch, s->height);
            if (error != CUDA_SUCCESS) return error;
            continue;
        }
        uint64_t first;
        size_t span;
        if (!find_rows(*s, width, height, depth, first, span)) return CUDA_ERROR_INVALID_VALUE;
        bool device_side = s->type == CU_MEMORYTYPE_DEVICE ||
                           (s->type == CU_MEMORYTYPE_UNIFIED && on_device(device, at(first)));
        if (device_side && outside(device, first, span, s == &to)) return CUDA_ERROR_INVALID_VALUE;
        s->base = first;
    }
    return wait_and(device, stream, [=] {
        for (size_t z = 0; z < depth; ++z)
            for (size_t y = 0; y < height && !cancelled(); ++y)
                std::memmove(at(to.base + (z * to.height + y) * to.pitch),
                             at(from.base + (z * from.height + y) * from.pitch), width);
    });
}

CUresult copy_2d(CUstream stream, const CUDA_MEMCPY2D* p) {
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    return copy_pitched(stream,
                        side(p->srcMemoryType, p->srcHost, p->srcDevice, p->srcArray, p->srcPitch, 0,
                             p->srcXInBytes, p->srcY, 0),
                        side(p->dstMemoryType, p->dstHost, p->dstDevice, p->dstArray, p->dstPitch, 0,
                             p->dstXInBytes, p->dstY, 0),
                        p->WidthInBytes, p->Height, 1);
}

CUresult copy_3d(CUstream stream, const CUDA_MEMCPY3D* p) {
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    return copy_pitched(stream,
                        side(p->srcMemoryType, p->srcHost, p->srcDevice, p->srcArray, p->srcPitch,
                             p->srcHeight, p->srcXInBytes, p->srcY, p->srcZ),
                        side(p->dstMemoryType, p->dstHost, p->dstDevice, p->dstArray, p->dstPitch,
                             p->dstHeight, p->dstXInBytes, p->dstY, p->dstZ),
                        p->WidthInBytes, p->Height, p->Depth);
}
}  // namespace

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* dptr, size_t bytesize) {
    GPUKERNEL_HERE(device);
    if (!dptr || !bytesize) return CUDA_ERROR_INVALID_VALUE;
    auto address = device->memory->allocate(bytesize);
    if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
    *dptr = *address;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes, size_t Height,
                                 unsigned int ElementSizeBytes) {
    if (!pPitch || !WidthInBytes || !Height) return CUDA_ERROR_INVALID_VALUE;
    const auto pitch = gpukernel::checked_round_up(WidthInBytes, 512);
    const auto bytes = pitch ? gpukernel::checked_product(*pitch, Height) : std::nullopt;
    if (!bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    *pPitch = *pitch;
    return cuMemAlloc(dptr, *bytes);
}

CUresult CUDAAPI cuMemFree(CUdeviceptr dptr) {
    GPUKERNEL_HERE(device);
    if (!dptr) return CUDA_SUCCESS;
    CUresult error = device->synchronize();
    if (error != CUDA_SUCCESS) return error;
    if (mapped(device, dptr) || !device->memory->free(dptr)) return CUDA_ERROR_INVALID_VALUE;
    forget_managed(device, dptr);
    return CUDA_SUCCESS;
}

// Stream-ordered allocation, without a pool of its own: memory is there at once and goes back in order.
CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (dptr && !bytesize) return *dptr = 0, CUDA_SUCCESS;
    return cuMemAlloc(dptr, bytesize);
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (!dptr) return CUDA_SUCCESS;
    auto block = device->memory->find(dptr);
    if (!block || block->address != dptr || mapped(device, dptr)) return CUDA_ERROR_INVALID_VALUE;
    forget_managed(device, dptr);
    return in_order(device, stream, [=] { device->memory->free(dptr); }, true);
}

CUresult CUDAAPI cuMemGetInfo(size_t* free, size_t* total) {
    GPUKERNEL_HERE(device);
    if (!free || !total) return CUDA_ERROR_INVALID_VALUE;
    *total = device->memory->capacity();
    *free = *total - device->memory->used();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) {
    GPUKERNEL_HERE(device);
    auto block = block_of(device, dptr);
    if (!block) return CUDA_ERROR_NOT_FOUND;
    if (pbase) *pbase = block->address;
    if (psize) *psize = block->bytes;
    return CUDA_SUCCESS;
}

namespace {
// Memory among the device's, which is the host's, too.
CUresult allocate_on_host(Device* device, void** pointer, size_t bytes, unsigned flags,
                          DeviceMemory::Account account) {
    const auto address = device->memory->allocate(bytes, account);
    if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
    *pointer = at(*address);
    std::lock_guard lock(device->mutex);
    device->mapped[*address] = flags;
    device->pinned[*address] = bytes;
    return CUDA_SUCCESS;
}
}  // namespace

CUresult gpukernel::libcuda::allocate_mapped(void** pointer, size_t bytes, unsigned flags) {
    GPUKERNEL_HERE(device);
    return allocate_on_host(device, pointer, bytes, flags, DeviceMemory::Account::programs);
}
CUresult gpukernel::libcuda::allocate_pinned(void** pointer, size_t bytes) {
    GPUKERNEL_HERE(device);
    return allocate_on_host(device, pointer, bytes, 0, DeviceMemory::Account::context);
}
CUresult gpukernel::libcuda::map_pinned(const void*) { return CUDA_SUCCESS; }
CUresult gpukernel::libcuda::registered_pointer(const void*, CUdeviceptr&) {
    return gpukernel::unsupported("a kernel's access to registered host memory");
}
CUresult gpukernel::libcuda::host_memory_usable() { return here().error; }
std::optional<unsigned> gpukernel::libcuda::mapped_flags(const void* pointer) {
    return mapped(current_context()->device, reinterpret_cast<CUdeviceptr>(pointer));
}
bool gpukernel::libcuda::is_pinned(const void* pointer) {
    return pinned(current_context()->device, pointer, 1);
}

CUresult CUDAAPI cuMemFreeHost(void* p) {
    GPUKERNEL_HERE(device);
    if (!p) return CUDA_SUCCESS;
    CUresult error = device->synchronize();
    std::lock_guard lock(device->mutex);
    const auto address = reinterpret_cast<uint64_t>(p);
    if (!device->mapped.erase(address)) return CUDA_ERROR_INVALID_VALUE;  // registered memory is not ours
    device->pinned.erase(address);
    device->memory->free(address);
    return error;
}

CUresult CUDAAPI cuMemHostRegister(void* p, size_t bytesize, unsigned int Flags) {
    GPUKERNEL_HERE(device);
    if (!p || !bytesize) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(device->mutex);
    return device->pinned.emplace(reinterpret_cast<uint64_t>(p), bytesize).second
               ? CUDA_SUCCESS
               : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

CUresult CUDAAPI cuMemHostUnregister(void* p) {
    GPUKERNEL_HERE(device);
    CUresult error = device->synchronize();
    std::lock_guard lock(device->mutex);
    if (!device->pinned.erase(reinterpret_cast<uint64_t>(p))) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    return error;
}

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount) {
    GPUKERNEL_HERE(device);
    return to_device(device, current_context()->legacy.get(), dstDevice, srcHost, ByteCount, true);
}
CUresult CUDAAPI cuMemcpyDtoH(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
    GPUKERNEL_HERE(device);
    if (outside(device, srcDevice, ByteCount) || (ByteCount && !dstHost)) return CUDA_ERROR_INVALID_VALUE;
    return wait_and(device, nullptr, [=] { transfer(dstHost, at(srcDevice), ByteCount); });
}
CUresult CUDAAPI cuMemcpyDtoD(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount) {
    GPUKERNEL_HERE(device);
    return on_the_device(device, nullptr, dstDevice, srcDevice, ByteCount);
}
CUresult CUDAAPI cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) {
    GPUKERNEL_HERE(device);
    Stream* const stream = current_context()->legacy.get();
    if (CUresult error = anywhere(device, stream, dst, src, ByteCount); error != CUDA_SUCCESS) return error;
    schedule().wait(*stream);
    return device->told();
}

CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount,
                                   CUstream hStream) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    return to_device(device, stream, dstDevice, srcHost, ByteCount, false);
}
CUresult CUDAAPI cuMemcpyDtoHAsync(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    return to_host(device, stream, dstHost, srcDevice, ByteCount);
}
CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                                   CUstream hStream) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    return on_the_device(device, stream, dstDevice, srcDevice, ByteCount);
}
CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    return anywhere(device, stream, dst, src, ByteCount);
}

CUresult CUDAAPI cuMemcpy2D(const CUDA_MEMCPY2D* pCopy) { return copy_2d(nullptr, pCopy); }
CUresult CUDAAPI cuMemcpy2DUnaligned(const CUDA_MEMCPY2D* pCopy) { return copy_2d(nullptr, pCopy); }
CUresult CUDAAPI cuMemcpy2DAsync(const CUDA_MEMCPY2D* pCopy, CUstream hStream) {
    return copy_2d(hStream, pCopy);
}
CUresult CUDAAPI cuMemcpy3D(const CUDA_MEMCPY3D* pCopy) { return copy_3d(nullptr, pCopy); }
CUresult CUDAAPI cuMemcpy3DAsync(const CUDA_MEMCPY3D* pCopy, CUstream hStream) {
    return copy_3d(hStream, pCopy);
}

CUresult CUDAAPI cuMemsetD8(CUdeviceptr p, unsigned char value, size_t N) {
    return fill<uint8_t>(nullptr, p, N, value, N, 1);
}
CUresult CUDAAPI cuMemsetD16(CUdeviceptr p, unsigned short value, size_t N) {
    return fill<uint16_t>(nullptr, p, N * 2, value, N, 1);
}
CUresult CUDAAPI cuMemsetD32(CUdeviceptr p, unsigned int value, size_t N) {
    return fill<uint32_t>(nullptr, p, N * 4, value, N, 1);
}
CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr p, unsigned char value, size_t N, CUstream s) {
    return fill<uint8_t>(s, p, N, value, N, 1);
}
CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr p, unsigned short value, size_t N, CUstream s) {
    return fill<uint16_t>(s, p, N * 2, value, N, 1);
}
CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr p, unsigned int value, size_t N, CUstream s) {
    return fill<uint32_t>(s, p, N * 4, value, N, 1);
}
CUresult CUDAAPI cuMemsetD2D8(CUdeviceptr p, size_t pitch, unsigned char value, size_t w, size_t h) {
    return fill<uint8_t>(nullptr, p, pitch, value, w, h);
}
CUresult CUDAAPI cuMemsetD2D16(CUdeviceptr p, size_t pitch, unsigned short value, size_t w, size_t h) {
    return fill<uint16_t>(nullptr, p, pitch, value, w, h);
}
CUresult CUDAAPI cuMemsetD2D32(CUdeviceptr p, size_t pitch, unsigned int value, size_t w, size_t h) {
    return fill<uint32_t>(nullptr, p, pitch, value, w, h);
}
CUresult CUDAAPI cuMemsetD2D8Async(CUdeviceptr p, size_t pitch, unsigned char value, size_t w, size_t h,
                                   CUstream s) {
    return fill<uint8_t>(s, p, pitch, value, w, h);
}
CUresult CUDAAPI cuMemsetD2D16Async(CUdeviceptr p, size_t pitch, unsigned short value, size_t w, size_t h,
                                    CUstream s) {
    return fill<uint16_t>(s, p, pitch, value, w, h);
}
CUresult CUDAAPI cuMemsetD2D32Async(CUdeviceptr p, size_t pitch, unsigned int value, size_t w, size_t h,
                                    CUstream s) {
    return fill<uint32_t>(s, p, pitch, value, w, h);
}

CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    GPUKERNEL_HERE(device);
    if (!data) return CUDA_ERROR_INVALID_VALUE;
    auto block = block_of(device, ptr);
    const bool reached = mapped(device, ptr).has_value(),
               host = reached || (!block && pinned(device, at(ptr), 1));
    if (!block && !host) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            *static_cast<CUcontext*>(data) = current_context();
            break;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            *static_cast<unsigned*>(data) = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
            break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            if (!block) return CUDA_ERROR_INVALID_VALUE;
            *static_cast<CUdeviceptr*>(data) = ptr;
            break;
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            // A mapping may forbid writing; all other memory the host reaches where the device does.
            if (block && block->number & MAPPED) return CUDA_ERROR_INVALID_VALUE;
            *static_cast<void**>(data) = at(ptr);
            break;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            *static_cast<unsigned long long*>(data) = block ? block->number : ptr;
            break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            *static_cast<unsigned*>(data) = is_managed(device, ptr);
            break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            *static_cast<int*>(data) = device->index;
            break;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            *static_cast<CUdeviceptr*>(data) = block ? block->address : ptr;
            break;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            *static_cast<size_t*>(data) = block ? block->bytes : 0;
            break;
        case CU_POINTER_ATTRIBUTE_MAPPED:
            *static_cast<unsigned*>(data) = block ? 1 : 0;
            break;
        default:
            return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute* attributes,
                                        void** data, CUdeviceptr ptr) {
    GPUKERNEL_HERE(device);
    if (!attributes || !data) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < numAttributes; ++i) cuPointerGetAttribute(data[i], attributes[i], ptr);
    return CUDA_SUCCESS;
}
