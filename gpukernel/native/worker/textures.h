// Texture and surface objects of one program.  Kernels hold the driver's own numbers, so that these are the
// client's too; what was asked of each is kept with the client's names in it.
#pragma once

#include <map>

#include "driver.h"

namespace gpukernel::worker {

struct View {
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC texture;
    CUDA_RESOURCE_VIEW_DESC view;
    bool viewed;
};

struct Views {
    std::map<CUtexObject, View> textures;
    std::map<CUsurfObject, View> surfaces;
    std::map<uint64_t, uint64_t> arrays;  // the array of each texture reference, both by their names

    void destroy(const Driver& cuda) {
        for (const auto& [object, view] : textures) cuda.cuTexObjectDestroy(object);
        for (const auto& [object, view] : surfaces) cuda.cuSurfObjectDestroy(object);
        textures.clear(), surfaces.clear();
    }
};

}  // namespace gpukernel::worker
