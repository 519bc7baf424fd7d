// Errors: the driver's as the runtime's, the last one of each thread, names and sentences.  The numbers are
// the same since CUDA 10.1; which of the two APIs an error comes from shows where only one has it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_set>

#include "cudart/runtime.h"

namespace gpukernel::cudart {

namespace {
thread_local cudaError_t last = cudaSuccess;

const ErrorText* text_of(int code) {
    for (const ErrorText* text = error_texts; text->name; ++text)
        if (text->code == code) return text;
    return nullptr;
}

// Errors after which the context is of no use: they are not cleared by reading them.
bool stays(cudaError_t error) {
    switch (error) {
        case cudaErrorIllegalAddress:
        case cudaErrorLaunchTimeout:
        case cudaErrorAssert:
        case cudaErrorHardwareStackError:
        case cudaErrorIllegalInstruction:
        case cudaErrorMisalignedAddress:
        case cudaErrorInvalidAddressSpace:
        case cudaErrorInvalidPc:
        case cudaErrorLaunchFailure:
        case cudaErrorECCUncorrectable:
            return true;
        default:
            return false;
    }
}
}  // namespace

cudaError_t translated(CUresult result) {
    return text_of(result) ? static_cast<cudaError_t>(result) : cudaErrorUnknown;
}

cudaError_t fail(cudaError_t error) {
    if (error != cudaSuccess) last = error;
    return error;
}

cudaError_t done(CUresult result) {
    if (result == CUDA_SUCCESS) return cudaSuccess;
    if (result == CUDA_ERROR_NOT_READY) return cudaErrorNotReady;
    return fail(translated(result));
}

cudaError_t unsupported(const char* name) {
    static const bool debug = [] {
        const char* level = std::getenv("GPUKERNEL_LOG");
        return level && std::strcmp(level, "debug") == 0;
    }();
    if (debug) {
        static std::mutex& mutex = *new std::mutex;
        static auto& told = *new std::unordered_set<std::string>;
        std::lock_guard lock(mutex);
        if (told.insert(name).second)
            std::fprintf(stderr, "gpukernel: %s is not supported by this CUDA runtime\n", name);
    }
    return fail(cudaErrorNotSupported);
}

void forget_errors() { last = cudaSuccess; }

}  // namespace gpukernel::cudart

using namespace gpukernel::cudart;

API cudaError_t cudaGetLastError(void) {
    const cudaError_t error = last;
    if (!stays(error)) last = cudaSuccess;
    return error;
}

API cudaError_t cudaPeekAtLastError(void) { return last; }

API const char* cudaGetErrorName(cudaError_t error) {
    const ErrorText* text = text_of(error);
    return text ? text->name : "unrecognized error code";
}

API const char* cudaGetErrorString(cudaError_t error) {
    const ErrorText* text = text_of(error);
    return text ? text->sentence : "unrecognized error code";
}
