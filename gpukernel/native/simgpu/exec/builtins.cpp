// Functions that the device runtime provides: vprintf, __assertfail, malloc, free, cudaGraphSetConditional.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "simgpu/exec/block.h"

namespace gpukernel::simgpu {
namespace {

template <class T>
T argument(Warp& warp, const CallSite& site, size_t n, int lane) {
    T value;
    std::memcpy(&value,
                warp.local + warp.local_stride * static_cast<uint64_t>(lane) + warp.frame->local_base +
                    site.args.at(n),
                sizeof value);
    return value;
}
template <class T>
void answer(Warp& warp, const CallSite& site, int lane, T value) {
    if (site.rets.empty()) return;
    std::memcpy(
        warp.local + warp.local_stride * static_cast<uint64_t>(lane) + warp.frame->local_base + site.rets[0],
        &value, sizeof value);
}
const char* pointer(Warp& warp, uint64_t address, uint32_t size, int lane,
                    AccessKind access = AccessKind::read) {
    uint64_t ad[kLanes];
    for (uint64_t& a : ad) a = address;
    uint32_t exec = warp.exec;
    warp.exec = 1u << lane;
    Op op;
    op.access = access;
    for (uint32_t n = 0; n < size; ++n) {
        ad[lane] = address + n;
        resolve_slowly(warp, op, ad, 1, Space::generic);
    }
    warp.exec = exec;
    return reinterpret_cast<const char*>(ad[lane]) - (size - 1);
}
// The bytes of one line that a thread prints, and of what a warp's failed assertions say: what a context's
// buffer for printed text has at first.  What is longer is cut, or a few bytes of a program's would become as
// many as it likes in the host's memory.
constexpr size_t kLongestText = 1 << 20;
constexpr size_t kLongestName = 16 << 10;  // of a file or function in a failed assertion

std::string text_at(Warp& warp, uint64_t address, int lane, size_t most) {
    std::string out;
    if (!address) return "(null)";
    while (out.size() < most) {
        const char c = *pointer(warp, address++, 1, lane);
        if (!c) break;
        out += c;
    }
    return out;
}

constexpr int32_t kWidest =
    999;  // the host's printf takes memory for the width and the precision it is asked for

// C formatting (CUDA C++ guide, "Formatted output"): arguments lie at their natural alignment.
std::string format(Warp& warp, const std::string& text, uint64_t args, int lane, int& count) {
    std::string out;
    uint64_t at = args;
    auto take = [&](uint32_t size) {
        at = (at + size - 1) / size * size;
        uint64_t value = 0;
        std::memcpy(&value, pointer(warp, at, size, lane), size);
        at += size;
        return value;
    };
    for (size_t i = 0; i < text.size() && out.size() < kLongestText; ++i) {
        if (text[i] != '%') {
            out += text[i];
            continue;
        }
        std::string spec = "%";
        int longs = 0, digits = 0;
        for (++i; i < text.size(); ++i) {
            char c = text[i];
            if (c == 'l' || c == 'z' || c == 'j' || c == 't') {
                longs += c == 'l' ? 1 : 2;
                continue;
            }
            if (c == 'h' || c == 'L') continue;
            if (c == '*') {
                spec += std::to_string(std::clamp(static_cast<int32_t>(take(4)), -kWidest, kWidest));
                continue;
            }
            if (!std::strchr("-+ #0123456789.", c)) break;
            digits = c >= '0' && c <= '9' ? digits + 1 : 0;
            if (digits <= 3) spec += c;
        }
        if (i >= text.size()) {
            out += spec;
            break;
        }
        char c = text[i], buffer[512];
        buffer[0] = 0;
        switch (c) {
            case '%':
                out += '%';
                continue;
            case 'd':
            case 'i':
                if (longs)
                    std::snprintf(buffer, sizeof buffer, (spec + "lld").c_str(),
                                  static_cast<long long>(take(8)));
                else
                    std::snprintf(buffer, sizeof buffer, (spec + "d").c_str(), static_cast<int>(take(4)));
                break;
            case 'u':
            case 'x':
            case 'X':
            case 'o':
                if (longs)
                    std::snprintf(buffer, sizeof buffer, (spec + "ll" + c).c_str(),
                                  static_cast<unsigned long long>(take(8)));
                else
                    std::snprintf(buffer, sizeof buffer, (spec + c).c_str(), static_cast<unsigned>(take(4)));
                break;
            case 'c':
                std::snprintf(buffer, sizeof buffer, (spec + "c").c_str(), static_cast<int>(take(4)));
                break;
            case 'f':
            case 'F':
            case 'e':
            case 'E':
            case 'g':
            case 'G':
            case 'a':
            case 'A':
                std::snprintf(buffer, sizeof buffer, (spec + c).c_str(), std::bit_cast<double>(take(8)));
                break;
            case 'p':
                std::snprintf(buffer, sizeof buffer, (spec + "#llx").c_str(),
                              static_cast<unsigned long long>(take(8)));
                break;
            case 's': {
                std::string s = text_at(warp, take(8), lane, kLongestText - out.size());
                if (spec == "%") {
                    out += s;
                    ++count;
                    continue;
                }
                std::snprintf(buffer, sizeof buffer, (spec + "s").c_str(), s.c_str());
                break;
            }
            default:
                out += spec + c;
                continue;
        }
        out += buffer;
        ++count;
    }
    return out;
}

// The line that CUDA prints for a device assertion (CUDA C++ guide, "Assertion").
std::string assertion(Warp& warp, const CallSite& site, int lane) {
    auto text = [&](size_t n) {
        return text_at(warp, argument<uint64_t>(warp, site, n, lane), lane, kLongestName);
    };
    char where[160];
    const BlockState& block = *warp.block;
    std::snprintf(where, sizeof where, ": block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `", block.ctaid[0],
                  block.ctaid[1], block.ctaid[2], warp.tid[0][lane], warp.tid[1][lane], warp.tid[2][lane]);
    return text(1) + ":" + std::to_string(argument<uint32_t>(warp, site, 2, lane)) + ": " + text(3) + where +
           text(0) + "` failed.\n";
}

}  // namespace

bool call_builtin(Warp& warp, const CallSite& site) {
    std::string failed;
    for (uint32_t m = warp.exec; m; m &= m - 1) {
        int lane = std::countr_zero(m);
        pause(warp);  // each lane may take long
        switch (site.builtin) {
            case Builtin::vprintf: {
                int count = 0;
                std::string text =
                    format(warp, text_at(warp, argument<uint64_t>(warp, site, 0, lane), lane, kLongestText),
                           argument<uint64_t>(warp, site, 1, lane), lane, count);
                if (warp.launch->launch->print) warp.launch->launch->print(text);
                answer<int32_t>(warp, site, lane, count);
                break;
            }
            case Builtin::assertfail:
                if (failed.size() < kLongestText) failed += assertion(warp, site, lane);
                break;
            case Builtin::malloc:
                answer<uint64_t>(
                    warp, site, lane,
                    warp.launch->memory->allocate_heap(argument<uint64_t>(warp, site, 0, lane)).value_or(0));
                break;
            case Builtin::free:
                if (uint64_t address = argument<uint64_t>(warp, site, 0, lane))
                    if (!warp.launch->memory->free_heap(address))
                        throw Fault{Status::illegal_address,
                                    "free() of what malloc() did not give, " + place(warp, lane)};
                warp.cache[0] = warp.cache[1] = {};
                break;
            case Builtin::set_condition: {  // its handle is the address of its word
                                            // (shim/graphs/conditions.cpp)
                const auto handle = argument<uint64_t>(warp, site, 0, lane);
                if (handle % sizeof(uint32_t))
                    throw Fault{Status::illegal_address, "no conditional handle, " + place(warp, lane)};
                auto* const word = reinterpret_cast<uint32_t*>(
                    const_cast<char*>(pointer(warp, handle, sizeof(uint32_t), lane, AccessKind::write)));
                __atomic_store_n(word, argument<uint32_t>(warp, site, 1, lane), __ATOMIC_RELAXED);
                break;
            }
            default:
                break;
        }
    }
    if (!failed.empty()) throw Fault{Status::assertion, failed.substr(0, failed.size() - 1)};
    return true;
}

}  // namespace gpukernel::simgpu
