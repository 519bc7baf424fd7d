// cuDNN in the user's program: each call becomes data, and travels in the order of its handle's stream.
#include "libraries/cudnn/client.h"

#include <bit>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>

#include "libraries/client.h"
#include "libraries/cudnn/recurrent.h"
#include "libraries/numbers.h"

namespace gpukernel::libraries::cudnn {

namespace {
constexpr uint32_t LIBRARY = library_number(CUDNN, CUDNN_MAJOR);
constexpr size_t MOST_ANSWER = 1 << 20;  // bytes

// What the worker itself refuses has numbers that are the same for every library.
int status_in(int status) {
    switch (status) {
        case 1:
            return NOT_INITIALIZED;
        case 3:
            return ALLOC_FAILED;
        case 7:
            return BAD_PARAM;
        case 15:
            return NOT_SUPPORTED;
        default:
            return status;
    }
}
}  // namespace

int queue_words(Handle& handle, uint32_t function, const std::vector<uint64_t>& words) {
    if (port()->current_device() != handle.device) return BAD_PARAM;
    const PortCall call{LIBRARY, function, handle.stream, words.data(), words.size()};
    bool captured = false;
    const CUresult result = port()->queue(&call, &captured);
    if (captured) handle.captured = true;
    return status_of(result);
}

int ask_words(const Handle& handle, uint32_t function, const char* name, const std::vector<uint64_t>& words,
              std::vector<int64_t>& answer) {
    if (port()->current_device() != handle.device) return BAD_PARAM;
    const PortCall call{LIBRARY, function, nullptr, words.data(), words.size()};
    const std::unique_ptr<int64_t[]> room(new int64_t[MOST_ANSWER / sizeof(int64_t)]);  // no byte is touched
    int32_t status = 0;
    size_t got = 0;
    const CUresult error = ask(call, false, name, status, room.get(), MOST_ANSWER, got);
    answer.assign(room.get(), room.get() + got / sizeof(int64_t));
    return error == CUDA_SUCCESS ? status_in(status) : status_of(error);
}

namespace {
// A call of the table: its words begin with the handle.
class Call {
  public:
    Call(void* handle, const char* name, uint32_t function)
        : handle_(handle_of(handle)), name_(name), function_(function) {
        if (handle_)
            words_.push_back(handle_->name);
        else
            status_ = BAD_PARAM;
    }
    bool ready() const { return !status_; }
    int status() const { return status_; }

    void number(int64_t value) { words_.push_back(static_cast<uint64_t>(value)); }
    void device(const void* address) { words_.push_back(reinterpret_cast<uint64_t>(address)); }
    void scalar(const void* value, size_t bytes) {
        if (!value) status_ = BAD_PARAM;
        if (value) append(words_, value, bytes);
    }
    // An array on the host; whether it is there and its length makes sense.
    bool ints(const int* values, int64_t count) {
        if (count < 0 || (count && !values)) return false;
        number(count);
        append(words_, values, static_cast<size_t>(count) * sizeof(int));
        return true;
    }
    void result(void* place, size_t bytes) {
        if (!place || bytes != sizeof(int64_t)) status_ = BAD_PARAM;
        result_ = place;
    }
    // Whether it is there, or may be null.
    template <class Form>
    bool descriptor(const void* form, bool optional) {
        number(form != nullptr);
        if (!form) return optional;
        if constexpr (std::is_trivially_copyable_v<Form>)
            append(words_, form, sizeof(Form));
        else
            append(words_, *static_cast<const Form*>(form));
        return true;
    }

    int queue() { return status_ ? status_ : queue_words(*handle_, function_, words_); }
    int ask() {  // for the size of something, which these words say
        if (status_) return status_;
        if (port()->current_device() != handle_->device) return BAD_PARAM;
        const PortCall call{LIBRARY, function_, nullptr, words_.data(), words_.size()};
        int64_t answer = 0;
        int32_t status = 0;
        size_t got = 0;
        if (const CUresult error = ask_once(call, name_, status, &answer, sizeof answer, got))
            return status_of(error);
        if (!status && got != sizeof answer) return INTERNAL_ERROR;
        if (!status) std::memcpy(result_, &answer, sizeof answer);
        return status_in(status);
    }

  private:
    Handle* const handle_;
    const char* const name_;
    const uint32_t function_;
    int status_ = SUCCESS;
    void* result_ = nullptr;
    std::vector<uint64_t> words_;
};

// The versions of servers' libraries, by what stands for a device: a handle's answer brings them.
struct Versions {
    std::mutex mutex;
    std::map<int, size_t> all;
    static Versions& of_devices() {
        static auto* const only = new Versions;  // threads may be inside at exit
        return *only;
    }
    void keep(int device, size_t version) {
        std::lock_guard lock(mutex);
        all[device] = version;
    }
};
}  // namespace

GPUKERNEL_EXPORT int cudnnCreate(void** handle) {
    if (!handle) return BAD_PARAM;
    *handle = nullptr;
    if (!port()) return NOT_INITIALIZED;
    const int device = port()->current_device();
    if (device < 0) return NOT_INITIALIZED;
    auto own = std::make_unique<Handle>();
    own->device = device;
    own->name = port()->name();
    std::vector<int64_t> answer;
    if (const int status = ask_words(*own, CREATE, "cudnnCreate", {own->name}, answer))
        return status == EXECUTION_FAILED ? NOT_INITIALIZED : status;
    Versions::of_devices().keep(device, answer.size() == 1 ? static_cast<size_t>(answer[0]) : OWN_VERSION);
    *handle = keep_handle(own.release());
    return SUCCESS;
}

GPUKERNEL_EXPORT int cudnnDestroy(void* handle) {
    Handle* const own = drop_handle(handle);
    if (!own) return NOT_INITIALIZED;
    const std::unique_ptr<Handle> end(own);
    // A graph's calls outlive the handle that they were captured with; the worker's ends with the program.
    if (own->captured || port()->current_device() != own->device) return SUCCESS;
    const PortCall call{LIBRARY, DESTROY, nullptr, &own->name, 1};
    bool captured;
    port()->queue(&call, &captured);
    return SUCCESS;
}

namespace {
size_t version_of(int device) {
    Versions& known = Versions::of_devices();
    const auto find = [&] {
        std::lock_guard lock(known.mutex);
        const auto it =
            device < 0 && !known.all.empty() ? std::prev(known.all.end()) : known.all.find(device);
        return it == known.all.end() ? 0 : it->second;
    };
    if (const size_t found = find(); found || device < 0) return found;
    void* handle = nullptr;
    if (cudnnCreate(&handle))
        known.keep(device, OWN_VERSION);  // and nobody waits again to hear it
    else
        cudnnDestroy(handle);
    return find();
}
// Of the first device's server, where no context is current: the device's own is, for as long as this takes.
// Before `cuInit` nobody is asked, as a program that only wants to know could not fork any more.
size_t version_of_the_first() {
    auto* const retain = driver_function<decltype(cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain");
    auto* const release =
        driver_function<decltype(cuDevicePrimaryCtxRelease)>("cuDevicePrimaryCtxRelease_v2");
    auto* const push = driver_function<decltype(cuCtxPushCurrent)>("cuCtxPushCurrent_v2");
    auto* const pop = driver_function<decltype(cuCtxPopCurrent)>("cuCtxPopCurrent_v2");
    CUcontext context = nullptr;
    if (!retain || !release || !push || !pop || retain(&context, 0)) return 0;
    size_t found = 0;
    if (!push(context)) {
        found = version_of(port()->current_device());
        pop(&context);
    }
    release(0);
    return found;
}
}  // namespace

size_t version() {
    if (!port()) return OWN_VERSION;
    if (const size_t found = version_of(port()->current_device())) return found;
    const size_t found = version_of_the_first();
    return found ? found : OWN_VERSION;
}

#include "cudnn_client.inc"
#include "cudnn_unsupported.inc"

}  // namespace gpukernel::libraries::cudnn
