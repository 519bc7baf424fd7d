// Slurm's Epilog on a node that gives slices to shard jobs:
//
//     gpukernel-slurm-hook [FOLDER]
//
// It marks the job as over, tells the daemon (gpukernel/engines/shards/node.py), and waits until the job's
// slice is free.  It never fails: Slurm would take the node out of service.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "slurm_hook/job_folder.h"

namespace gpukernel::slurm_hook {
namespace {

constexpr char DEFAULT_FOLDER[] = "/run/gpukernel-slurm";
constexpr int GOODBYE_MILLISECONDS = 30000, LONGEST_STEP = 50;

std::string variable(const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return value ? value : "";
}

bool is_number(std::string_view text) {
    return !text.empty() && text.size() <= 10 &&
           text.find_first_not_of("0123456789") == std::string_view::npos;
}

bool is_name(std::string_view text) {
    return !text.empty() && text.size() <= 64 && text[0] != '.' &&
           text.find_first_of("/ \t\n") == std::string_view::npos;
}

void epilog(const NodeFolder& node, const std::string& id) {
    node.end(id);
    if (!node.tell("end", id)) return;
    for (int waited = 0, step = 1; node.has(id) && waited < GOODBYE_MILLISECONDS; waited += step) {
        ::usleep(static_cast<useconds_t>(step) * 1000);
        step = std::min(2 * step, LONGEST_STEP);
    }
}

}  // namespace
}  // namespace gpukernel::slurm_hook

int main(int count, char** words) {
    using namespace gpukernel::slurm_hook;
    const std::string context = variable("SLURM_SCRIPT_CONTEXT"), id = variable("SLURM_JOB_ID"),
                      name = variable("SLURMD_NODENAME");
    if (context.empty() || !is_number(id) || !is_name(name)) {
        std::fprintf(stderr, "gpukernel: this is for Epilog in slurm.conf.\n");
        return 2;
    }
    const NodeFolder node((count > 1 ? words[1] : std::string(DEFAULT_FOLDER)) + "/" + name);
    if (!node.exists()) return 0;  // a node that gives no slices
    if (context == "epilog_slurmd") epilog(node, id);
    return 0;
}
