#include "simgpu/driver/devices/models.h"

#include <cuda_newest.h>

#include <algorithm>
#include <cstdlib>

namespace gpukernel::simgpu {

namespace {
constexpr uint64_t GiB = uint64_t{1} << 30;
constexpr int KiB = 1 << 10, MiB = 1 << 20;
// NVIDIA's branch R580, CUDA 13.0, is the last driver for Volta (NVIDIA Data Center Drivers, "Supported
// Drivers").
constexpr int VOLTA = 13000, NEWEST = GPUKERNEL_CUDA_VERSION;
constexpr Model models[] = {
    {"v100", "Tesla V100-SXM2-32GB (simulated)", 32 * GiB, 7, 0, 80, 1530000, 877000, 4096, 6 * MiB, 2048, 32,
     96 * KiB, 96 * KiB, VOLTA},
    {"v100-16gb", "Tesla V100-SXM2-16GB (simulated)", 16 * GiB, 7, 0, 80, 1530000, 877000, 4096, 6 * MiB,
     2048, 32, 96 * KiB, 96 * KiB, VOLTA},
    {"t4", "Tesla T4 (simulated)", 16 * GiB, 7, 5, 40, 1590000, 5001000, 256, 4 * MiB, 1024, 16, 64 * KiB,
     64 * KiB, NEWEST},
    {"a100", "NVIDIA A100-SXM4-40GB (simulated)", 40 * GiB, 8, 0, 108, 1410000, 1215000, 5120, 40 * MiB, 2048,
     32, 164 * KiB, 163 * KiB, NEWEST},
    {"a100-80gb", "NVIDIA A100-SXM4-80GB (simulated)", 80 * GiB, 8, 0, 108, 1410000, 1593000, 5120, 40 * MiB,
     2048, 32, 164 * KiB, 163 * KiB, NEWEST},
    {"h100", "NVIDIA H100 80GB HBM3 (simulated)", 80 * GiB, 9, 0, 132, 1980000, 2619000, 5120, 50 * MiB, 2048,
     32, 228 * KiB, 227 * KiB, NEWEST},
    {"h200", "NVIDIA H200 (simulated)", 141 * GiB, 9, 0, 132, 1980000, 3201000, 6144, 50 * MiB, 2048, 32,
     228 * KiB, 227 * KiB, NEWEST},
    {"b200", "NVIDIA B200 (simulated)", 180 * GiB, 10, 0, 148, 1965000, 3996000, 8192, 126 * MiB, 2048, 32,
     228 * KiB, 227 * KiB, NEWEST},
    {"rtx5090", "NVIDIA GeForce RTX 5090 (simulated)", 32 * GiB, 12, 0, 170, 2407000, 14001000, 512, 96 * MiB,
     1536, 24, 100 * KiB, 99 * KiB, NEWEST},
};
}  // namespace

const Model* model_named(std::string_view key) {
    std::string lower(key);
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    for (const Model& model : models)
        if (model.key == lower) return &model;
    return nullptr;
}

std::vector<const Model*> models_from(std::string_view specification, std::string& unknown) {
    std::vector<const Model*> found;
    while (!specification.empty()) {
        std::string_view one = specification.substr(0, specification.find(','));
        specification.remove_prefix(std::min(one.size() + 1, specification.size()));
        int count = 1;
        if (size_t colon = one.find(':'); colon != std::string_view::npos) {
            count = std::atoi(std::string(one.substr(colon + 1)).c_str());
            one = one.substr(0, colon);
        }
        const Model* model = model_named(one);
        if (!model || count < 1 || count > 64) {
            unknown = one;
            return {};
        }
        found.insert(found.end(), count, model);
    }
    return found;
}

}  // namespace gpukernel::simgpu
