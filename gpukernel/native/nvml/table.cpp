#include "nvml/table.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "nvml/slice.h"

namespace gpukernel::nvml {

bool SharedTable::open(const std::string& directory) {
    if (table_) return !table_->ended;
    const int file = ::open((directory + "/table").c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    struct stat status;
    void* memory = MAP_FAILED;
    if (::fstat(file, &status) == 0 && status.st_size >= off_t(sizeof(wire::SliceTable)))
        memory = ::mmap(nullptr, sizeof(wire::SliceTable), PROT_READ, MAP_SHARED, file, 0);
    ::close(file);
    if (memory == MAP_FAILED) return false;
    table_ = static_cast<const wire::SliceTable*>(memory);
    if (table_->magic != wire::SliceTable::MAGIC || table_->version != wire::SliceTable::VERSION) close();
    return table_ && !table_->ended;
}

void SharedTable::close() {
    if (table_) ::munmap(const_cast<wire::SliceTable*>(table_), sizeof(wire::SliceTable));
    table_ = nullptr;
}

void SharedTable::usage(Usage& usage) const {
    usage.memory_limit = table_->limit, usage.memory_used = 0;
    usage.gpu_seconds = 0, usage.gpu_share = std::clamp<float>(table_->gpu_share, 0, 1);
    usage.programs.clear();
    for (uint32_t i = 0, end = std::min<uint32_t>(table_->used_slots, wire::SliceTable::SLOTS); i < end;
         ++i) {
        const wire::ProgramSlot& slot = table_->slots[i];
        const int32_t pid = slot.pid;
        if (pid <= 0 || (::kill(pid, 0) != 0 && errno == ESRCH)) continue;
        const uint64_t bytes = slot.counted + slot.overhead;
        usage.memory_used += bytes;
        usage.gpu_seconds += slot.gpu_seconds;
        size_t length = sizeof slot.command;
        while (length && !slot.command[length - 1]) --length;
        usage.programs.push_back({uint32_t(pid), bytes, std::string(slot.command, length)});
    }
    usage.memory_used = std::min(usage.memory_used, usage.memory_limit);
}

}  // namespace gpukernel::nvml
