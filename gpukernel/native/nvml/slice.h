// The slice behind the NVML devices: its lease file, a connection to each worker, and what the workers
// answer.
//
// In direct mode there is no worker, and the slice's table has both.
//
// A connection is made when something is first asked of its device, and made again when it broke.  It asks
// only questions (wire::CustomCall::device and ::usage), which a worker does not take for a CUDA program.
#pragma once

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "calls.h"
#include "nvml/table.h"
#include "wire/channel.h"
#include "wire/device_facts.h"

namespace gpukernel::nvml {

struct SliceProcess {
    uint32_t pid;
    uint64_t bytes;
    std::string command;  // as /proc/PID/cmdline has it
};

struct Usage {
    uint64_t memory_limit, memory_used;  // bytes
    double gpu_seconds;
    double gpu_share;  // of the last second, 0 to 1
    std::vector<SliceProcess> programs;
};

}  // namespace gpukernel::nvml

// The target of nvmlDevice_t, which nvml.h leaves to the library.  Once made it lives as long as the process.
struct nvmlDevice_st {
    unsigned index = 0;

    // All under `state_mutex`.  NVML_ERROR_GPU_IS_LOST where the worker does not answer.
    nvmlReturn_t facts(const gpukernel::wire::DeviceFacts*& facts);
    nvmlReturn_t usage(gpukernel::nvml::Usage& usage);

    void belong_to(unsigned place, std::vector<std::string> endpoints, std::string secret);
    void forget();  // closes the connection

  private:
    bool connect();
    // One question and its answer's outputs; asks a second time on a new connection where the old one broke.
    nvmlReturn_t ask(gpukernel::wire::CustomCall question, std::vector<char>& answer);
    bool ask_once(gpukernel::wire::CustomCall question, std::vector<char>& answer);

    // The directory of the slice in direct mode; else empty.
    std::string directory() const;
    gpukernel::nvml::SharedTable table_;

    std::vector<std::string> endpoints_;
    std::string secret_;
    gpukernel::wire::Channel channel_;
    std::chrono::steady_clock::time_point lost_{};  // when connecting last failed
    bool knows_facts_ = false;
    gpukernel::wire::DeviceFacts facts_{};
};

namespace gpukernel::nvml {

// One question at a time: a question takes some 30 µs on one host.
extern std::mutex state_mutex;

nvmlReturn_t begin();  // nvmlInit: reads the lease file, and connects to nobody yet
nvmlReturn_t end();
// Under `state_mutex`: NVML_ERROR_UNINITIALIZED before `begin`; else success and the devices in CUDA order.
nvmlReturn_t devices(std::vector<nvmlDevice_t>& devices);
nvmlReturn_t check(nvmlDevice_t device);

}  // namespace gpukernel::nvml
