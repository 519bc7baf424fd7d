// The state of a container, as a runtime writes it to a hook's standard input (OCI runtime specification,
// "State"): a JSON object.  Only two of its members are needed here, so this walks over the text and keeps
// those of the outermost object; what it does not understand is no state.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gpukernel::oci_hook {

struct State {
    std::string id;  // letters, figures, "_", "-", "." and "+", as runtimes have it: it becomes a file's name
    int pid = 0;     // of the container's first process; 0 where there is none any more
};

std::optional<State> parse_state(std::string_view text);

}  // namespace gpukernel::oci_hook
