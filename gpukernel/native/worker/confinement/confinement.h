// The worker's confinement: what the process gives up before it executes anybody's work, rung by rung.
//
// The rungs are kept by the kernel, not by this program: what is given up cannot be had back by whoever takes
// the process over.  All of them survive the worker's restart (execve), so a restarted worker applies none.
// Which rungs are used is the agent's decision; one that was asked for and fails ends the start with a
// sentence.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace gpukernel::worker {

struct Confinement {
    bool no_new_privileges = false, limits = false, landlock = false, system_calls = false;
    bool real_device = false;  // NVIDIA's driver is loaded afterwards: its device files and ioctls stay open
    std::optional<std::pair<uid_t, gid_t>> account;
    std::vector<std::string> cgroups;  // directories of cgroups to join: one, or with version 1 several
    // What Landlock leaves open.
    std::string library, images, time_slicing, processes;

    // Reads the rungs' names, separated by commas; false where one is unknown.
    bool parse(const std::string& names);
    // Reads UID:GID.
    bool parse_account(const std::string& text);

    // Before the listeners are opened: the cgroup, limits, no new privileges.  False with a sentence.
    bool enter(std::string& error) const;
    // After they are open, before a driver is loaded: account, files, network, system calls.
    bool close(std::string& error) const;
    // Tries each rung in this process and writes a JSON array of {"rung","used","detail"}.
    std::string probe() const;

  private:
    bool join_cgroups(std::string& error) const;
    bool forgo_privileges(std::string& error) const;
    bool lower_limits(std::string& error) const;
    bool change_account(std::string& error) const;
};

// Confines this process and its threads to the files of `confinement` and closes TCP ports; `detail` names
// the version of Landlock's interface.
bool restrict_files(const Confinement& confinement, std::string& detail, std::string& error);

// Admits the system calls that a worker needs and refuses all others with EPERM; the first refusal of each is
// written to standard error with its name.
bool restrict_system_calls(bool real_device, std::string& error);
// Has refused system calls written to standard error; a restarted worker calls it first of all.
void report_refused_system_calls();

}  // namespace gpukernel::worker
