// What NVRTC has made of programs, kept in the user's own folder from one process to the next.
//
// What it guarantees.  A program is found again only where everything that NVRTC has been given is the same:
// source, headers, options, name expressions, and the library itself.  Programs that read anything else
// (files that they include, the time) are not kept.  A file that is not whole, not the user's, or of another
// program is passed over.  The folder has a bound; those that were not wanted for longest make way.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gpukernel::compilers {

// What was given to NVRTC.
struct Given {
    std::string source, name;
    std::vector<std::string> headers, header_names, expressions, options;
};

// What a program that it has compiled answers.
struct Made {
    std::string ptx, log;
    bool for_a_gpu = false;                      // there is a cubin
    std::map<std::string, std::string> lowered;  // by name expression
};

// Whether NVRTC reads nothing else for it.
bool is_closed(const Given& given);

// The folder; empty: nothing is to be kept.  GPUKERNEL_NVRTC_CACHE names another one, or is `off`.
std::string folder_of_programs();

// `library`: what tells one NVRTC from another.
std::optional<Made> find_program(const std::string& folder, const std::string& library, const Given& given);
void keep_program(const std::string& folder, const std::string& library, const Given& given,
                  const Made& made);

}  // namespace gpukernel::compilers
