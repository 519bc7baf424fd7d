// The folder of one job on its node, which the daemon makes (gpukernel/engines/shards/folder.py).
#pragma once

#include <string>

namespace gpukernel::slurm_hook {

// The folder of a node: the daemon's sockets, and `jobs`.
class NodeFolder {
  public:
    explicit NodeFolder(std::string path) : path_(std::move(path)) {}

    bool exists() const;
    // Marks a job as over, where it is there.
    void end(const std::string& id) const;
    bool has(const std::string& id) const;
    // Tells the daemon; false where none listens.
    bool tell(const std::string& word, const std::string& id) const;

  private:
    std::string job(const std::string& id) const { return path_ + "/jobs/" + id; }
    std::string path_;
};

}  // namespace gpukernel::slurm_hook
