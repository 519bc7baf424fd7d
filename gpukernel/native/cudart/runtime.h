// What the files of this library share: errors, the current context, and the functions and variables that a
// program registered.
#pragma once

#include <cuda_runtime_api.h>

#include "cudart/driver.h"

#define API extern "C" __attribute__((visibility("default")))

namespace gpukernel::cudart {

// ---- errors.cpp
struct ErrorText {
    int code;
    const char* name;
    const char* sentence;
};
extern const ErrorText error_texts[];  // generated; ends with a row without name

cudaError_t translated(CUresult result);
// Records an error for cudaGetLastError and returns it.
cudaError_t fail(cudaError_t error);
// The same of the driver's result; that something is not ready is no error, and is not recorded.
cudaError_t done(CUresult result);
// Records cudaErrorNotSupported; with GPUKERNEL_LOG=debug, names the function once on standard error.
cudaError_t unsupported(const char* name);
// The error of the context that this thread's last call met: nothing works any more until cudaDeviceReset.
void forget_errors();

// ---- devices.cpp
// Initialises the driver, and makes the primary context of this thread's device current where none is.
CUresult enter();
CUresult initialise();
// Returns the device of the current context, or the one that cudaSetDevice named.
int current_device();
// Returns the primary context of `device`, retained once for this process.
CUresult primary_context(int device, CUcontext& context);

// ---- streams
inline cudaStream_t per_thread(cudaStream_t stream) { return stream ? stream : cudaStreamPerThread; }

// A function in _ptds runs inside one of these: its default stream is the thread's own.
class PerThreadDefault {
  public:
    PerThreadDefault() : before_(wanted) { wanted = true; }
    ~PerThreadDefault() { wanted = before_; }
    PerThreadDefault(const PerThreadDefault&) = delete;
    PerThreadDefault& operator=(const PerThreadDefault&) = delete;
    static inline thread_local bool wanted = false;

  private:
    bool before_;
};

// Makes a call on the default stream that returns when it is done: `async` is the one on a stream.
template <class Sync, class Async>
CUresult on_default_stream(Sync sync, Async async) {
    if (!PerThreadDefault::wanted) return sync();
    if (CUresult result = async(CU_STREAM_PER_THREAD)) return result;
    return driver::cuStreamSynchronize(CU_STREAM_PER_THREAD);
}

// ---- registration.cpp
// Finds the kernel that `function` stands for: a function of the program, or a handle of a kernel or
// function. An image is loaded when the first of its kernels or variables is asked for.
CUresult find_kernel(const void* function, CUfunction& kernel);
// The same, as a function of the current context.
CUresult find_function(const void* function, CUfunction& found);
// Returns what the program knows `found` by: the function that was registered, or the handle itself.
const void* known_as(CUfunction found);
// Finds a variable; cudaErrorInvalidSymbol where none was registered at `symbol`.
cudaError_t find_variable(const void* symbol, CUdeviceptr& address, size_t& size);
// Ends what was loaded into the device's context, which is reset.
void forget_images();

// ---- copies.cpp
// Fills in what the driver asks for of a copy; the sizes of elements come from the arrays.
CUresult copy_of(const cudaMemcpy3DParms& from, CUDA_MEMCPY3D& to);
// Finds the address of a part of a variable.
cudaError_t part_of(const void* symbol, size_t count, size_t offset, CUdeviceptr& address);

// ---- arrays.cpp
bool format_of(const cudaChannelFormatDesc& from, CUarray_format& format, unsigned& channels);
cudaChannelFormatDesc channels_of(CUarray_format format, unsigned channels);
// Returns the bytes of an element, or 0 where the format is not known.
size_t element_bytes(CUarray_format format, unsigned channels);

}  // namespace gpukernel::cudart
