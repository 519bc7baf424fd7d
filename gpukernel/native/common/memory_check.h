// How closely the simulated GPU looks at what kernels access.
//
// A GPU notices an access past an allocation's last byte only where nothing of the allocation's granule is
// left. So does the simulated one, which tells of it once; a strict check makes it the fault that
// compute-sanitizer finds.  The simulated GPU's libcuda exports `gpukernel_set_memory_check`; NVIDIA's has
// none of that name.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace gpukernel {

struct MemoryCheck {
    bool strict;
    uint64_t program;  // whoever launches, as a number of the caller's
    // Gets the sentence about a program's access past an allocation, from any of the device's threads.
    void (*tell)(uint64_t program, const char* sentence);
};

// Says how the kernels are checked that the calling thread launches from now on.  A thread that never said
// goes by the environment of its process.
using SetMemoryCheck = void (*)(const MemoryCheck* check);
constexpr char SET_MEMORY_CHECK[] = "gpukernel_set_memory_check";

// The beginning of such a sentence, by which a program's side tells it from what kernels print.
constexpr std::string_view WARNING = "gpukernel: warning: ";

constexpr char MEMORY_CHECK_VARIABLE[] = "GPUKERNEL_MEMCHECK";
// Whether a setting asks for the strict check; nothing for a word that is none.
inline std::optional<bool> strict_check(const char* word) {
    const std::string_view asked = word ? word : "";
    if (asked == "strict") return true;
    return asked.empty() || asked == "hardware" ? std::optional(false) : std::nullopt;
}

}  // namespace gpukernel
