// Slurm's Prolog, TaskProlog and Epilog on a node that gives slices to shard jobs:
//
//     gpukernel-slurm-hook [FOLDER]
//
// Which of the three it is Slurm says in SLURM_SCRIPT_CONTEXT.  The prolog puts the job down and tells the
// daemon (gpukernel/engines/shards/node.py), which finds out whether it is a shard job and acquires its
// slice meanwhile.  The task prolog sets the variables of a program on a slice.  The epilog marks the job as
// over, and waits until its slice is free.  None of them ever fails: Slurm would take the node out of
// service.
#include <syslog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "slurm_hook/environment.h"
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

void complain(const std::string& trouble) {
    std::fprintf(stderr, "gpukernel: %s\n", trouble.c_str());
    ::syslog(LOG_DAEMON | LOG_ERR, "gpukernel-slurm-hook: %s", trouble.c_str());
}

void prolog(const NodeFolder& node, const std::string& id) {
    Job job{id, variable("SLURM_JOB_UID"), variable("SLURM_JOB_GID"), variable("SLURM_CLUSTER_NAME"),
            variable("SLURM_JOB_RESTART_COUNT")};
    if (!is_number(job.restart)) job.restart = "0";
    if (!is_number(job.user) || !is_number(job.group) || !is_name(job.cluster))
        return complain("job " + id + ": Slurm does not say whose it is");
    if (const std::string trouble = node.begin(job); !trouble.empty()) return complain(trouble);
    node.tell("begin", id);
}

void task_prolog(const NodeFolder& node, const std::string& id) {
    const std::string shards = variable("SLURM_SHARDS_ON_NODE"), lease = node.lease(id);
    if (shards.empty() || shards == "0" || ::access(lease.c_str(), F_OK) != 0) return;
    const std::string recipe = node.recipe() + "set GPUKERNEL_LEASE_FILE " + lease + "\n";
    std::fputs(task_lines(recipe, variable).c_str(), stdout);
}

void epilog(const NodeFolder& node, const std::string& id) {
    if (!node.end(id) || !node.tell("end", id)) return;
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
        std::fprintf(stderr, "gpukernel: this is for Slurm's Prolog, TaskProlog and Epilog in slurm.conf.\n");
        return 2;
    }
    const NodeFolder node((count > 1 ? words[1] : std::string(DEFAULT_FOLDER)) + "/" + name);
    if (!node.exists()) return 0;  // a node that gives no slices
    if (context == "prolog_slurmd") prolog(node, id);
    if (context == "prolog_task") task_prolog(node, id);
    if (context == "epilog_slurmd") epilog(node, id);
    return 0;
}
