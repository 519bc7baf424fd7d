// Which algorithm a convolution should use: one answer for each direction, the most general of those that the
// server's library has a workspace for.  Nothing is tried and timed.
#include <cstddef>

#include "libraries/cudnn/descriptors.h"
#include "libraries/cudnn/handle.h"

extern "C" {
int cudnnGetConvolutionForwardWorkspaceSize(void*, const void*, const void*, const void*, const void*, int,
                                            void*);
int cudnnGetConvolutionBackwardDataWorkspaceSize(void*, const void*, const void*, const void*, const void*,
                                                 int, void*);
int cudnnGetConvolutionBackwardFilterWorkspaceSize(void*, const void*, const void*, const void*, const void*,
                                                   int, void*);
}

namespace gpukernel::libraries::cudnn {

namespace {
struct Performance {  // as cudnn_cnn.h has it, for each direction
    int algorithm, status;
    float time;
    size_t memory;
    int deterministic, math, reserved[3];
};
static_assert(sizeof(Performance) == 48);
using Size = int (*)(void*, const void*, const void*, const void*, const void*, int, void*);

// By implicit products with indices that are made before (1), or without (0): both directions back have the
// same numbers for what is like it.
int choose(Size size, void* handle, const void* a, const void* b, const ConvolutionForm* form, const void* c,
           int requested, int* returned, Performance* results) {
    if (!form || requested <= 0 || !returned || !results) return BAD_PARAM;
    *returned = 0;
    int status = NOT_SUPPORTED;
    for (const int algorithm : {1, 0}) {
        size_t bytes = 0;
        if ((status = size(handle, a, b, form, c, algorithm, &bytes))) continue;
        results[0] = {algorithm, SUCCESS, -1, bytes, 1, form->math, {}};
        *returned = 1;
        return SUCCESS;
    }
    return status;
}
int count(void* handle, int* number) {
    return handle_of(handle) && number ? (*number = 1, SUCCESS) : BAD_PARAM;
}
}  // namespace

#define ALGORITHMS(Direction, SIZE)                                                                        \
    GPUKERNEL_EXPORT int cudnnGetConvolution##Direction##AlgorithmMaxCount(void* handle, int* number) {    \
        return count(handle, number);                                                                      \
    }                                                                                                      \
    GPUKERNEL_EXPORT int cudnnGetConvolution##Direction##Algorithm_v7(                                     \
        void* handle, const void* a, const void* b, const ConvolutionForm* form, const void* c,            \
        int requested, int* returned, Performance* results) {                                              \
        return choose(SIZE, handle, a, b, form, c, requested, returned, results);                          \
    }                                                                                                      \
    GPUKERNEL_EXPORT int cudnnFindConvolution##Direction##Algorithm(                                       \
        void* handle, const void* a, const void* b, const ConvolutionForm* form, const void* c,            \
        int requested, int* returned, Performance* results) {                                              \
        return choose(SIZE, handle, a, b, form, c, requested, returned, results);                          \
    }                                                                                                      \
    GPUKERNEL_EXPORT int cudnnFindConvolution##Direction##AlgorithmEx(                                     \
        void* handle, const void* a, const void*, const void* b, const void*, const ConvolutionForm* form, \
        const void* c, void*, int requested, int* returned, Performance* results, void*, size_t) {         \
        return choose(SIZE, handle, a, b, form, c, requested, returned, results);                          \
    }
ALGORITHMS(Forward, cudnnGetConvolutionForwardWorkspaceSize)
ALGORITHMS(BackwardData, cudnnGetConvolutionBackwardDataWorkspaceSize)
ALGORITHMS(BackwardFilter, cudnnGetConvolutionBackwardFilterWorkspaceSize)
#undef ALGORITHMS

}  // namespace gpukernel::libraries::cudnn
