// The texture and surface objects of one program.
//
// Kernels use the driver's own object numbers, so the program is given these and not numbers of the worker's.
// Their descriptions are kept as the program gave them, with its numbers of arrays in them.
#pragma once

#include <map>

#include "worker/lease/host_memory.h"
#include "worker/server/driver.h"

namespace gpukernel::worker {

// The description of one texture or surface object.
struct View {
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC texture;
    CUDA_RESOURCE_VIEW_DESC view;
    bool viewed;  // `view` was given
    HostCharge charge;
};

// All of a program's.
struct Views {
    std::map<CUtexObject, View> textures;
    std::map<CUsurfObject, View> surfaces;
    std::map<uint64_t, uint64_t> arrays;  // of each texture reference, by the worker's numbers of both

    void destroy(const Driver& cuda) {
        for (const auto& [object, view] : textures) cuda.cuTexObjectDestroy(object);
        for (const auto& [object, view] : surfaces) cuda.cuSurfObjectDestroy(object);
        textures.clear(), surfaces.clear();
    }
};

}  // namespace gpukernel::worker
