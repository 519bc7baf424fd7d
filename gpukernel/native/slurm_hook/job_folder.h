// The folder of one job on its node: root's, with the job's lease file, which is its person's, in it.
#pragma once

#include <string>

namespace gpukernel::slurm_hook {

struct Job {
    std::string id, user, group, cluster, restart;  // all as Slurm says them: numbers, and the cluster's name
};

// The folder of a node: the daemon's sockets, the recipe of variables, and `jobs`.
class NodeFolder {
  public:
    explicit NodeFolder(std::string path) : path_(std::move(path)) {}

    bool exists() const;
    std::string job(const std::string& id) const { return path_ + "/jobs/" + id; }
    std::string lease(const std::string& id) const { return job(id) + "/lease"; }
    std::string recipe() const;  // empty where there is none

    // Puts a job down, with a lease file that says where its slice is asked for; a job that is there already
    // stays as it is, unless Slurm has started it again.  Returns what went wrong, or nothing.
    std::string begin(const Job& job) const;
    // Marks a job as over; false where it is not there.
    bool end(const std::string& id) const;
    bool has(const std::string& id) const;
    // Tells the daemon; false where none listens.
    bool tell(const std::string& word, const std::string& id) const;

  private:
    std::string path_;
};

}  // namespace gpukernel::slurm_hook
