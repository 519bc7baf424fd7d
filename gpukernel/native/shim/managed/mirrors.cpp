// Registered memory that kernels reach (cuMemHostRegister, then cuMemHostGetDevicePointer).
//
// It is pages of the program's own, at any address and among other data, so they are neither moved nor
// protected.  A device has a mirror of them at an address of its own ("disjoint addressing", chapter "Unified
// Addressing" of the driver API).  `twin` is what both sides last agreed on.  What differs from it here is
// sent before work that may use the mirror; what differs from it there is stored here once the program has
// waited.  So each side keeps, byte by byte, what the other did not write.
//
// The traffic has a stream of its own, which waits for no other: a wait for one stream must not become a wait
// for another that waits for the program.
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "libcuda/library.h"
#include "shim/managed/pages.h"
#include "shim/memory/memory.h"
#include "shim/transport/request.h"

namespace gpukernel::shim {

std::atomic<int> mirrors{0};

namespace {
constexpr uint64_t PIECE = 1 << 20;
constexpr size_t MOST_PARTS = 64;  // sent one by one rather than after a wait
constexpr uint64_t NEAR = 256;     // bytes between two parts that make one, where nothing is lost by it

struct Part {
    uint64_t from, to;
};

// Reads memory of the program, which may have unmapped it: false then, and no signal.
bool read_program(uint64_t address, char* to, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes;) {
        iovec here{to + done, bytes - done}, its{at(address + done), bytes - done};
        const ssize_t moved = ::process_vm_readv(::getpid(), &here, 1, &its, 1, 0);
        if (moved < 0 && (errno == ENOSYS || errno == EPERM))  // not allowed in this container
            return std::memcpy(here.iov_base, its.iov_base, bytes - done), true;
        if (moved <= 0) return false;
        done += moved;
    }
    return true;
}

// Whether all of it is mapped, readable, and writable where `write`.
bool accessible(uint64_t address, uint64_t bytes, bool write) {
    std::FILE* maps = std::fopen("/proc/self/maps", "re");
    if (!maps) return true;
    uint64_t reached = address;
    char line[512];
    for (bool at_start = true; reached < address + bytes && std::fgets(line, sizeof line, maps);) {
        unsigned long long from, to;
        char may[5];
        const bool parsed = at_start && std::sscanf(line, "%llx-%llx %4s", &from, &to, may) == 3;
        at_start = std::strchr(line, '\n') != nullptr;
        if (!parsed || to <= reached) continue;
        if (from > reached || may[0] != 'r' || (write && may[1] != 'w')) break;
        reached = to;
    }
    std::fclose(maps);
    return reached >= address + bytes;
}

// The runs in which `now` differs from `then`, joined where they are less than `near` bytes apart.
std::vector<Part> differences(const char* now, const char* then, uint64_t bytes, uint64_t near) {
    std::vector<Part> parts;
    constexpr uint64_t STEP = 4096;
    for (uint64_t step = 0; step < bytes; step += STEP) {
        const uint64_t end = std::min(step + STEP, bytes);
        if (std::memcmp(now + step, then + step, end - step) == 0) continue;
        for (uint64_t i = step; i < end; ++i) {
            if (now[i] == then[i]) continue;
            const uint64_t from = i;
            while (i < end && now[i] != then[i]) ++i;
            if (!parts.empty() && from - parts.back().to <= near)
                parts.back().to = i;
            else
                parts.push_back({from, i});
        }
    }
    return parts;
}

CUstream stream_of(Connection& connection) {
    uint64_t& name = managed().progress[&connection].mirror_stream;
    if (!name) {
        Request request(connection, wire::DriverCall::cuStreamCreate);
        name = request.name_handle();
        request.put<unsigned>(CU_STREAM_NON_BLOCKING);
        request.queue();
    }
    return reinterpret_cast<CUstream>(name);
}

void end(Mirror& m, CUresult why) {
    owe(m.device->connection, why);
    if (std::exchange(m.lost, true)) return;
    complain(
        "registered memory that a kernel uses is not there any more, in this process or in its slice; "
        "the next CUDA call says why.");
}

// Stores here what the device has changed; the device is done with it, or this is done again.
bool fetch(Mirror& m) {
    Connection& connection = m.device->connection;
    const CUstream stream = stream_of(connection);
    std::vector<char> piece(std::min(PIECE, m.bytes)), there(piece.size());
    for (uint64_t from = 0; from < m.bytes; from += PIECE) {
        const uint64_t bytes = std::min(PIECE, m.bytes - from);
        const CUresult error = despite_earlier_errors(connection, [&] {
            return read_from_device(connection, piece.data(), m.address + from, bytes, stream);
        });
        if (error != CUDA_SUCCESS) return end(m, error), false;
        char* const twin = m.twin.data() + from;
        if (std::memcmp(piece.data(), twin, bytes) == 0) continue;
        if (!read_program(m.host + from, there.data(), bytes))
            return end(m, CUDA_ERROR_ILLEGAL_ADDRESS), false;
        // Byte by byte: another thread may be writing to those between.
        auto* const host = static_cast<volatile char*>(at(m.host + from));
        for (uint64_t i = 0; i < bytes; ++i)
            if (piece[i] != twin[i]) host[i] = twin[i] = piece[i];
    }
    const Progress& progress = managed().progress[&connection];
    m.out = m.out && progress.finished < m.written;
    return true;
}

// Waits for all that may write the mirror, and stores it here.
bool bring_home(Mirror& m) {
    if (m.lost || !m.out) return !m.lost;
    if (const CUresult error = catch_up(m.device->connection); error != CUDA_SUCCESS)
        return end(m, error), false;
    return fetch(m);
}

// Sends what the program has changed; with `all` the whole, which is what the device has not seen yet.
bool send(Mirror& m, bool all) {
    if (m.lost) return false;
    Connection& connection = m.device->connection;
    const CUstream stream = stream_of(connection);
    std::vector<char> piece(std::min(PIECE, m.bytes));
    bool sent = false;
    for (uint64_t from = 0; from < m.bytes; from += PIECE) {
        const uint64_t bytes = std::min(PIECE, m.bytes - from);
        char* const twin = m.twin.data() + from;
        auto read = [&] { return read_program(m.host + from, piece.data(), bytes); };
        if (!read()) return end(m, CUDA_ERROR_ILLEGAL_ADDRESS), false;
        std::vector<Part> parts{{0, bytes}};
        if (!all) {
            // Bytes between the parts may be the device's own by now, if it still works on the mirror.
            parts = differences(piece.data(), twin, bytes, m.out ? 0 : NEAR);
            if (m.out && parts.size() > MOST_PARTS) {
                if (!bring_home(m)) return false;
                if (!read()) return end(m, CUDA_ERROR_ILLEGAL_ADDRESS), false;
                parts = differences(piece.data(), twin, bytes, NEAR);
            }
        }
        for (const Part& part : parts) {
            std::memcpy(twin + part.from, piece.data() + part.from, part.to - part.from);
            const CUresult error = write_to_device(connection, m.address + from + part.from, twin + part.from,
                                                   part.to - part.from, stream);
            if (error != CUDA_SUCCESS) return end(m, error), false;
            sent = true;
        }
    }
    if (!sent) return true;
    const CUresult error = despite_earlier_errors(connection, [&] {
        Request request(connection, wire::DriverCall::cuStreamSynchronize);
        request.put(reinterpret_cast<uint64_t>(stream));
        return request.send();
    });
    if (error != CUDA_SUCCESS) end(m, error);
    return error == CUDA_SUCCESS;
}

void drop(std::map<CUdeviceptr, std::unique_ptr<Mirror>>::iterator it, bool give_back) {
    if (give_back && it->second->range) leave_room(it->second->range, it->second->address, it->second->room);
    managed().mirrors.erase(it);
    --mirrors;
    --managed_allocations;
}

Mirror* mirror_of(Connection& connection, uint64_t host) {
    for (auto& [address, each] : managed().mirrors)
        if (&each->device->connection == &connection && each->host == host) return each.get();
    return nullptr;
}
}  // namespace

Mirror* Managed::find_mirror(CUdeviceptr address) {
    auto it = mirrors.upper_bound(address);
    if (it == mirrors.begin()) return nullptr;
    Mirror* found = std::prev(it)->second.get();
    return address - found->address < found->bytes ? found : nullptr;
}

CUresult mirror(Device& device, const RegisteredMemory& memory, CUdeviceptr& address) {
    constexpr uint64_t PAGE = 4096;
    if (CUresult error = before_managed(device.connection); error != CUDA_SUCCESS) return error;
    ManagedLock lock(managed().mutex);
    if (const Mirror* known = mirror_of(device.connection, memory.address)) {
        address = known->address;
        return CUDA_SUCCESS;
    }
    const bool read_only = memory.flags & CU_MEMHOSTREGISTER_READ_ONLY;
    if (!accessible(memory.address, memory.bytes, false)) return CUDA_ERROR_INVALID_VALUE;
    if (!read_only && !accessible(memory.address, memory.bytes, true))
        return gpukernel::unsupported(
            "a kernel's access to read-only memory that was not registered with "
            "CU_MEMHOSTREGISTER_READ_ONLY");
    auto fresh = std::make_unique<Mirror>();
    Mirror& m = *fresh;
    m.device = &device, m.host = memory.address, m.bytes = memory.bytes, m.read_only = read_only;
    if (m.bytes > device.facts.memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    m.room = (m.bytes + PAGE - 1) / PAGE * PAGE;
    if (CUresult error = make_room(device.connection, m.room, m.range, m.address); error != CUDA_SUCCESS)
        return error;
    m.twin.resize(m.bytes);
    address = m.address;
    const auto it = managed().mirrors.emplace(m.address, std::move(fresh)).first;
    ++mirrors;
    ++managed_allocations;
    if (send(m, true)) return CUDA_SUCCESS;
    drop(it, true);
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult mirror_variable(Device& device, uint64_t library, CUdeviceptr address, uint64_t bytes) {
    Connection& connection = device.connection;
    // Kernels were launched before, for which nothing was counted.
    const CUresult error = despite_earlier_errors(connection, [&] {
        Request request(connection, wire::DriverCall::cuCtxSynchronize);
        return request.send();
    });
    if (error != CUDA_SUCCESS) return error;
    auto fresh = std::make_unique<Mirror>();
    Mirror& m = *fresh;
    m.device = &device, m.host = m.address = address, m.bytes = bytes, m.room = 0, m.range = nullptr;
    m.read_only = false, m.library = library;
    m.twin.resize(bytes);
    std::memset(at(address), 0, bytes);  // an earlier variable may have been here
    const auto it = managed().mirrors.emplace(address, std::move(fresh)).first;
    ++mirrors;
    ++managed_allocations;
    if (fetch(m)) return CUDA_SUCCESS;
    drop(it, false);
    return CUDA_ERROR_INVALID_VALUE;
}

void end_variables(Connection& connection, uint64_t library) {
    for (auto it = managed().mirrors.begin(); it != managed().mirrors.end();) {
        const auto next = std::next(it);
        if (it->second->library == library && &it->second->device->connection == &connection) drop(it, false);
        it = next;
    }
}

std::optional<CUdeviceptr> mirrored_at(Device& device, uint64_t host) {
    if (!has_mirrors()) return std::nullopt;
    ManagedLock lock(managed().mutex);
    const Mirror* const found = mirror_of(device.connection, host);
    return found ? std::optional(found->address) : std::nullopt;
}

void end_mirrors(uint64_t host) {
    if (!has_mirrors()) return;
    ManagedLock lock(managed().mutex);
    for (auto it = managed().mirrors.begin(); it != managed().mirrors.end();) {
        const auto next = std::next(it);
        if (it->second->host == host) {
            bring_home(*it->second);
            catch_up(it->second->device->connection);  // nothing reads it any more
            drop(it, true);
        }
        it = next;
    }
}

void forget_mirrors(Connection& connection) {
    for (auto it = managed().mirrors.begin(); it != managed().mirrors.end();) {
        const auto next = std::next(it);
        if (&it->second->device->connection == &connection) drop(it, false);
        it = next;
    }
}

void send_mirrors(Connection& connection) {
    const uint64_t number = managed().progress[&connection].submitted;
    for (auto& [address, each] : managed().mirrors)
        if (&each->device->connection == &connection && send(*each, false) && !each->read_only)
            each->out = true, each->written = number;
}

bool send_mirror(Connection& connection, const MemoryUse& use) {
    bool wrote = false;
    for (auto& [address, each] : managed().mirrors) {
        if (&each->device->connection != &connection || use.address >= address + each->bytes ||
            address >= use.address + use.bytes || !send(*each, false) || !use.writes)
            continue;
        each->out = wrote = true, each->written = managed().progress[&connection].submitted + 1;
    }
    return wrote;
}

void fetch_mirrors(Connection& connection) {
    for (auto& [address, each] : managed().mirrors)
        if (&each->device->connection == &connection && each->out && !each->lost) fetch(*each);
}

void bring_home(uint64_t host, uint64_t bytes) {
    if (!has_mirrors() || holds_managed()) return;
    ManagedLock lock(managed().mutex);
    for (auto& [address, each] : managed().mirrors)
        if (each->host < host + bytes && host < each->host + each->bytes) bring_home(*each);
}

}  // namespace gpukernel::shim
