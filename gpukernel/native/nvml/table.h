// The table of a slice in direct mode, which answers what a worker answers otherwise.
#pragma once

#include <string>

#include "wire/slice_table.h"

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
    const wire::SliceTable& operator*() const { return *table_; }
    void usage(Usage& usage) const;

  private:
    const wire::SliceTable* table_ = nullptr;
};

}  // namespace gpukernel::nvml
