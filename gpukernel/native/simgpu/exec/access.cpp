// The slow path of memory accesses: each lane's address is checked by itself, and a fault is described for
// people.
#include <cxxabi.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/checked.h"
#include "simgpu/exec/block.h"

namespace gpukernel::simgpu {
namespace {

// A mangled name may refer to its own parts again and again, and so stand for one that is longer by a power
// of its length.  At least as many letters as its demangled form has, but for words that one letter stands
// for: each reference makes it at most 1.45 times as long (the largest n-th root of n), and each pack as many
// times as it can have elements.
double demangled_length(const std::string& name) {
    double length = static_cast<double>(name.size());
    for (size_t at = 0; at + 1 < name.size(); ++at) {
        const char c = name[at];
        if (c == 'S' || c == 'T') {
            size_t end = at + 1;
            while (end < name.size() && (std::isdigit(name[end]) || std::isupper(name[end]))) ++end;
            if (end < name.size() && name[end] == '_') length *= 1.45;
        } else if (c == 'D' && name[at + 1] == 'p') {
            length *= static_cast<double>(name.size());
        }
    }
    return length;
}

std::string hexadecimal(uint64_t value) {
    char text[32];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
    return text;
}

std::string triple(uint32_t x, uint32_t y, uint32_t z) {
    return "(" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + ")";
}
std::string name_of(const BlockState& block) {
    return triple(block.ctaid[0], block.ctaid[1], block.ctaid[2]);
}

const char* window(Space space) {
    switch (space) {
        case Space::shared:
            return "__shared__";
        case Space::local:
            return "__local__";
        case Space::param:
            return "parameter";
        default:
            return "__global__";
    }
}

// The place of an address, seen from the allocation that it probably meant.
std::string neighbourhood(const Warp& warp, uint64_t address) {
    auto block = warp.launch->memory->nearest(address);
    if (!block) return "";
    std::string whole = std::to_string(block->bytes) + " bytes at " + hexadecimal(block->address);
    const uint64_t end = block->address + block->bytes;
    if (address < block->address)
        return ", " + std::to_string(block->address - address) + " bytes before the nearest allocation, " +
               whole;
    if (address >= end)
        return ", " + std::to_string(address - end) + " bytes after the nearest allocation, " + whole;
    return ", across the end of the allocation of " + whole;
}

[[noreturn]] void fault(Warp& warp, const Op& op, int lane, Status status, Space space, uint64_t address,
                        uint32_t size, const std::string& why = {}) {
    static const char* const kinds[] = {"read", "write", "atomic"};
    const bool misaligned = status == Status::misaligned_address;
    std::string text = std::string(misaligned ? "Misaligned " : "Invalid ") + window(space) + " " +
                       kinds[static_cast<int>(op.access)] + " of size " + std::to_string(size) + " bytes " +
                       place(warp, lane, op.line) + ": address " + hexadecimal(address) + " ";
    const std::string trouble =
        misaligned || space != Space::global
            ? why
            : warp.launch->memory->virtual_memory().trouble(address, size, op.access != AccessKind::read);
    text += misaligned ? "is misaligned" : trouble.empty() ? "is out of bounds" : trouble;
    if (!misaligned && space == Space::global && trouble.empty()) text += neighbourhood(warp, address);
    if (!misaligned && space == Space::shared && trouble.empty())
        text += ", the block has " + std::to_string(warp.shared_bytes) + " bytes";
    throw Fault{status, text};
}

// Whether an access past the end goes on as on a GPU; it is told once in a launch.
bool goes_on(Warp& warp, const Op& op, int lane, Space space, uint64_t address, uint32_t size, uint64_t past,
             const std::string& of) {
    LaunchState& launch = *warp.launch;
    if (launch.launch->strict) return false;
    if (launch.warned.exchange(true) || !launch.launch->warn) return true;
    static const char* const kinds[] = {"read", "write", "atomic"};
    launch.launch->warn(
        std::string("Out-of-bounds ") + window(space) + " " + kinds[static_cast<int>(op.access)] +
        " of size " + std::to_string(size) + " bytes " + place(warp, lane, op.line) + ": address " +
        hexadecimal(address) + " reaches " + std::to_string(past) + " bytes past the end of " + of +
        "; like a GPU, which does not notice it, the kernel goes on; GPUKERNEL_MEMCHECK=strict "
        "makes it an error");
    return true;
}

// The allocation around an access of global memory that begins in it, or in the rest of its last granule.
std::optional<DeviceMemory::Block> allocation_around(Warp& warp, const Op& op, int lane, uint64_t at,
                                                     uint32_t size) {
    const DeviceMemory& memory = *warp.launch->memory;
    auto block = memory.find(at);
    if (block && fits(at - block->address, size, block->bytes)) return block;
    // Allocations begin with a granule: its first byte tells whose the rest is.
    auto padded = memory.find(at / DeviceMemory::GRANULE * DeviceMemory::GRANULE);
    if (!padded) return std::nullopt;
    const uint64_t bytes = padded->bytes, end = padded->address + bytes;
    padded->bytes = (bytes + DeviceMemory::GRANULE - 1) / DeviceMemory::GRANULE * DeviceMemory::GRANULE;
    if (!fits(at - padded->address, size, padded->bytes) ||
        !goes_on(warp, op, lane, Space::global, at, size, at + size - end,
                 "the allocation of " + std::to_string(bytes) + " bytes at " + hexadecimal(padded->address)))
        return std::nullopt;
    return padded;
}

}  // namespace

std::string readable(const std::string& name) {
    constexpr double kLongest = 1 << 20;
    if (demangled_length(name) > kLongest) return name.substr(0, 1024);
    int status = 0;
    std::unique_ptr<char, FreeBytes> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status));
    if (status || !text) return name;
    std::string out = text.get();
    for (size_t at; (at = out.find("[abi:")) != std::string::npos;) {
        size_t end = out.find(']', at);
        if (end == std::string::npos) break;
        out.erase(at, end - at + 1);
    }
    return out;
}

std::string place(const Warp& warp, int lane, uint32_t ptx_line) {
    const Function &kernel = *warp.launch->kernel, &here = *warp.frame->function;
    std::string text = "at " + readable(kernel.name);
    if (&here != &kernel) text += " in " + readable(here.name);
    const SourceLine* source = nullptr;
    for (const SourceLine& s : here.sources)
        if (s.ptx_line <= ptx_line) source = &s;
    if (source)
        text += ", " + source->file.substr(source->file.rfind('/') + 1) + ":" + std::to_string(source->line);
    if (ptx_line) text += " (line " + std::to_string(ptx_line) + " of its PTX)";
    return text + " by thread " + triple(warp.tid[0][lane], warp.tid[1][lane], warp.tid[2][lane]) +
           " in block " + name_of(*warp.block);
}

void resolve_slowly(Warp& warp, const Op& op, uint64_t* address, uint32_t size, Space space, uint32_t align) {
    if (!align) align = size <= 16 ? size : 1;
    for (int lane = 0; lane < kLanes; ++lane) {
        if (!(warp.exec >> lane & 1)) continue;
        uint64_t at = address[lane], offset = at;
        Space here = space;
        if (space == Space::generic) {
            offset = at & kOffsetMask;
            switch (at >> kWindowShift) {
                case 0:
                    here = Space::global;
                    break;
                case kSharedWindow >> kWindowShift:
                    here = Space::shared;
                    break;
                case kLocalWindow >> kWindowShift:
                    here = Space::local;
                    break;
                case kParamWindow >> kWindowShift:
                    here = Space::param;
                    break;
                default:
                    fault(warp, op, lane, Status::illegal_address, Space::global, at, size);
            }
        }
        if (offset & (align - 1)) fault(warp, op, lane, Status::misaligned_address, here, at, size);
        char* base = nullptr;
        uint64_t bytes = 0;
        switch (here) {
            case Space::shared:
                base = warp.shared, bytes = warp.shared_bytes;
                if (const uint64_t named = offset >> kRankShift) {
                    const auto& blocks = warp.block->cluster->blocks;
                    if (named > blocks.size()) break;
                    const BlockState& other = *blocks[named - 1];
                    offset &= kSharedMask;
                    if (!other.living)
                        fault(warp, op, lane, Status::illegal_address, here, offset, size,
                              "lies in the shared memory of block " + name_of(other) +
                                  " of the cluster, whose threads have all ended");
                    base = other.warps[0].shared;
                }
                break;
            case Space::local:
                base = warp.local + warp.local_stride * lane, bytes = warp.local_stride;
                break;
            case Space::param:
                base = const_cast<char*>(warp.params), bytes = warp.param_bytes;
                break;
            default: {
                bool cached = false;
                for (const CachedRange& c : warp.cache)
                    cached |= at >= c.lo && fits(at - c.lo, size, c.hi - c.lo);
                if (!cached) {
                    const auto block = allocation_around(warp, op, lane, at, size);
                    if (!block || (!block->writable && op.access != AccessKind::read))
                        fault(warp, op, lane, Status::illegal_address, Space::global, at, size);
                    if (!block->writable) continue;  // the cache is for reads and writes
                    warp.cache[1] = warp.cache[0];
                    warp.cache[0] = {block->address, block->address + block->bytes};
                }
                continue;  // already a host pointer
            }
        }
        if (!fits(offset, size, bytes) &&
            (here != Space::shared || !fits(offset, size, padded_shared(bytes)) ||
             !goes_on(warp, op, lane, here, offset, size, offset + size - bytes,
                      "the block's " + std::to_string(bytes) + " bytes of shared memory")))
            fault(warp, op, lane, Status::illegal_address, here, offset, size);
        address[lane] = reinterpret_cast<uint64_t>(base) + offset;
    }
}

void not_a_whole_warp(const Warp& warp, const Op& op, const std::string& text) {
    throw Fault{Status::illegal_barrier, "Only " + std::to_string(std::popcount(warp.exec)) +
                                             " of the 32 threads of a warp execute " + text + " " +
                                             place(warp, std::countr_zero(warp.exec), op.line)};
}

void not_the_same_matrix(const Warp& warp, const Op& op, int lane, const MatrixPlan& plan) {
    throw Fault{Status::illegal_address,
                "Another address or stride than the first thread of the warp has, in " + plan.text + " " +
                    place(warp, lane, op.line)};
}

void not_a_bulk_size(const Warp& warp, const Op& op, int lane, uint32_t size) {
    throw Fault{Status::misaligned_address, "A bulk copy of " + std::to_string(size) +
                                                " bytes, which is no multiple of 16, " +
                                                place(warp, lane, op.line)};
}

void not_a_cache_policy(const Warp& warp, const Op& op, int lane, uint64_t policy) {
    char text[32];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(policy));
    throw Fault{Status::illegal_instruction, std::string("A bulk copy with the cache policy ") + text +
                                                 ", which no createpolicy has made, " +
                                                 place(warp, lane, op.line)};
}

void stack_overflow(const Warp& warp, int lane) {
    throw Fault{Status::illegal_address, "Stack overflow: a thread's calls need more than " +
                                             std::to_string(warp.local_stride) + " bytes, " +
                                             place(warp, lane)};
}

}  // namespace gpukernel::simgpu
