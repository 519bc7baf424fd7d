// The math libraries that the lease's programs use: NVIDIA's, or those beside the simulated GPU, by the same
// functions.
//
// A program sends the call as data (libraries/).  It reaches only handles of its own session; what it says of
// the device's memory must lie in its lease.  Where a library is not there a sentence says which, and where
// to get it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "libraries/numbers.h"
#include "worker/lease/host_memory.h"
#include "worker/server/driver.h"

namespace gpukernel::worker {

class Lease;
class Session;

// One library of one major version, loaded when it is first used and kept.
class MathLibrary {
  public:
    // nullptr, and `error` says why, where it cannot be loaded.
    static MathLibrary* find(Session& session, uint32_t number, std::string& error);
    void* function(const char* name) const;

  private:
    void* library_ = nullptr;
};

// A handle of a library, as one session has it.
struct LibraryObject {
    LibraryObject(Session& session, MathLibrary& library, uint32_t number, HostCharge charge)
        : session(session), library(library), number(number), charge(std::move(charge)) {}
    ~LibraryObject();
    void end();  // the library's handle
    LibraryObject(const LibraryObject&) = delete;

    Session& session;
    MathLibrary& library;
    const uint32_t number;  // of the library
    HostCharge charge;
    // Held over a call: a program's threads may use one handle at once, and few libraries bear that.
    std::mutex in_use;
    void* object = nullptr;
    uint64_t calls = 0;
    std::function<int(void*)> destroy;
    // What calls with it need beside the handle: objects of the library's, and a workspace on the host.
    struct Beside {
        void* object;
        int (*destroy)(void*);
    };
    std::map<std::string, Beside> beside;
    // On the host: the newest is the workspace, and calls in the device's streams may still use the others.
    std::vector<std::vector<char>> host_room, estimates;
    // As the library's handle is set now.
    CUstream stream = nullptr;
    uint64_t modes = 0, workspace = 0, workspace_bytes = 0;
    std::shared_ptr<void> extra;  // what the library's part keeps with it, which ends before the handle
};

// The objects of one session by the program's numbers.
class LibraryObjects {
  public:
    std::shared_ptr<LibraryObject> find(uint64_t name) const;
    bool add(uint64_t name, std::shared_ptr<LibraryObject> object);  // false where the number is in use
    bool drop(uint64_t name);
    void clear();

  private:
    mutable std::mutex mutex_;  // a thread that waits for a library's result names none, another may
    std::map<uint64_t, std::shared_ptr<LibraryObject>> objects_;
};

// An array of the program's host memory, which came with a call.
class HostInts {
  public:
    HostInts() = default;
    explicit HostInts(std::vector<int> values) : values_(std::move(values)) {}
    const int* get() const { return values_.data(); }
    int64_t count() const { return static_cast<int64_t>(values_.size()); }

  private:
    std::vector<int> values_;
};

// The words of one call, read in the order of its parameters.
class LibraryArguments {
  public:
    LibraryArguments(Session& session, std::string_view words, CUstream stream, std::vector<char>& outputs)
        : session_(session), words_(words), stream_(stream), outputs_(outputs) {}
    // Words that stand in another call.
    LibraryArguments(const LibraryArguments& in, std::string_view words)
        : LibraryArguments(in.session_, words, in.stream_, in.outputs_) {
        object = in.object;
    }

    template <class T>
    T number() {
        return static_cast<T>(word());
    }
    void* device();             // an address in the lease's memory, or null
    void* space(size_t bytes);  // of so many bytes
    const void* scalar(size_t bytes);
    void* result(size_t bytes);
    void* inout(size_t bytes);
    // An object of the library's own that the handle's calls share, made when it is first needed.
    void* made(const char* create, const char* destroy, uint32_t kind = 0);
    void* fail() { return failed_ = true, nullptr; }
    void* host(uint64_t bytes) { return on_the_host(object->host_room, bytes); }  // a workspace
    void* room(size_t bytes);  // where the size of a workspace goes: at most two
    void* estimate(int64_t count) {
        return on_the_host(object->estimates, count > 0 ? static_cast<uint64_t>(count) * sizeof(double) : 0);
    }
    bool failed() const { return failed_; }
    bool lacks() const { return lacks_; }      // the library has no such function
    bool no_room() const { return no_room_; }  // the lease's host memory has none for a workspace
    uint64_t word();
    const void* bytes(size_t size);  // padded to whole words
    HostInts ints();
    bool in_lease(uint64_t address, uint64_t bytes) const;
    bool left() const { return at_ < words_.size(); }
    std::string_view rest() const { return words_.substr(at_); }

    Session& session() { return session_; }
    CUstream stream() const { return stream_; }
    std::vector<char>& outputs() { return outputs_; }
    void* handle() const { return object->object; }
    // Calls the function of this call, in a wait of the session's where it returns something to the host.
    template <class Function, class... Arguments>
    int call(Arguments... arguments) {
        auto* const its = reinterpret_cast<Function>(object->library.function(name));
        if (!its) return lacking();
        if (rooms_) {
            const int status = its(arguments...);
            outputs_.assign(result_, result_ + rooms_ * sizeof(uint64_t));
            return status;
        }
        if (!to_host_) return its(arguments...);
        int status = 0;
        bool no_memory = false;  // thrown on when the wait is over
        waiting([&] {
            try {
                status = its(arguments...);
            } catch (const std::bad_alloc&) {
                no_memory = true;
            }
        });
        if (no_memory) throw std::bad_alloc();
        outputs_.assign(result_, result_ + result_bytes_);
        return status;
    }

    std::shared_ptr<LibraryObject> object;
    const char* name = "";
    std::string reason;   // what was wrong, where the library's part knows more than a status
    bool on_host = true;  // scalars, by the handle's pointer mode
    int own_status = 0;   // of a library whose numbers are not cuBLAS's

  private:
    int lacking();
    void* on_the_host(std::vector<std::vector<char>>& own, uint64_t bytes);
    void waiting(const std::function<void()>& work);

    static constexpr size_t MOST_SCALARS = 4, SCALAR_BYTES = 64;
    Session& session_;
    const std::string_view words_;
    const CUstream stream_;
    std::vector<char>& outputs_;
    size_t at_ = 0, scalars_ = 0, result_bytes_ = 0, rooms_ = 0;
    bool failed_ = false, to_host_ = false, lacks_ = false, no_room_ = false;
    alignas(16) char scalar_[MOST_SCALARS][SCALAR_BYTES];
    alignas(16) char result_[SCALAR_BYTES];
};

struct LibraryFunction {
    const char* name;
    int (*run)(LibraryArguments&);
    bool answered;
};

// A library's own numbers for what every library may answer, and that answer in cuBLAS's numbers.
struct OwnStatuses {
    int not_initialized, alloc_failed, invalid_value, not_supported;
};
int common_status(LibraryArguments& in, int status, const OwnStatuses& own);

// One library's part: makes an object (0, or the library's status), and runs a function of its table.
struct LibraryCalls {
    const char* name;
    int (*create)(LibraryArguments& in, MathLibrary& library, LibraryObject& object);
    int (*run)(LibraryArguments& in, uint32_t function);
    CUresult (*result_of)(int status) = nullptr;  // among the driver's errors, where they are not cuBLAS's
    int no_memory = 3;  // what it answers where the host has no memory: ALLOC_FAILED
};
extern const LibraryCalls cublas_calls, cublaslt_calls, cudnn_calls, cufft_calls, cusolver_calls,
    cusparse_calls, curand_calls;

}  // namespace gpukernel::worker
