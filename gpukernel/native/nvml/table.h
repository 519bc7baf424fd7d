// A slice in direct mode, which has no worker to ask: its table, as the programs and the agent keep it.
#pragma once

#include <string>

#include "direct/table.h"

namespace gpukernel::nvml {

struct Usage;

// A mapping for reading only.
class SharedTable {
  public:
    SharedTable() = default;
    SharedTable(const SharedTable&) = delete;
    ~SharedTable() { close(); }
    bool open(const std::string& directory);  // also where it is open; false where there is no such slice
    void close();
    const direct::Table& operator*() const { return *table_; }
    void usage(Usage& usage) const;

  private:
    const direct::Table* table_ = nullptr;
};

}  // namespace gpukernel::nvml
