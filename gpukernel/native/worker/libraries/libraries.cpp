#include "worker/libraries/libraries.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sstream>

#include "libraries/cublas/types.h"
#include "worker/lease/measured.h"
#include "worker/session/session.h"

namespace gpukernel::worker {

using libraries::cublas::Status;

namespace {
constexpr uint64_t HOST_ROOM = uint64_t{256} << 20;  // at most, for a library's workspace on the host
constexpr uint64_t OBJECT_BYTES =
    64 << 10;  // of the host's memory for one handle, beside what a library takes

const LibraryCalls* calls_of(uint32_t number) {
    switch (number & 0xffff) {
        case libraries::CUBLAS:
            return &cublas_calls;
        case libraries::CUBLASLT:
            return &cublaslt_calls;
        case libraries::CUFFT:
            return &cufft_calls;
        case libraries::CUSOLVER:
            return &cusolver_calls;
        case libraries::CUSPARSE:
            return &cusparse_calls;
        case libraries::CURAND:
            return &curand_calls;
        case libraries::CUDNN:
            return &cudnn_calls;
        default:
            return nullptr;
    }
}

// Where libraries may lie, the first place first; "" is where the dynamic linker looks.
std::vector<std::string> places(const Driver& cuda) {
    if (cuda.simulated()) return {cuda.folder() + "/../simgpu_libraries/"};
    std::vector<std::string> found;
    if (const char* path = std::getenv("GPUKERNEL_LIBRARIES")) {
        std::istringstream folders(path);
        for (std::string folder; std::getline(folders, folder, ':');)
            if (!folder.empty()) found.push_back(folder + "/");
    }
    found.emplace_back();
    return found;
}

// What an asynchronous call's failure is among the driver's errors, where the program hears of it.
CUresult result_of(int status) {
    switch (status) {
        case Status::SUCCESS:
            return CUDA_SUCCESS;
        case Status::ALLOC_FAILED:
            return CUDA_ERROR_OUT_OF_MEMORY;
        case Status::INVALID_VALUE:
            return CUDA_ERROR_INVALID_VALUE;
        case Status::NOT_SUPPORTED:
        case Status::ARCH_MISMATCH:
            return CUDA_ERROR_NOT_SUPPORTED;
        case Status::NOT_INITIALIZED:
            return CUDA_ERROR_INVALID_HANDLE;
        default:
            return CUDA_ERROR_UNKNOWN;
    }
}

std::string creation_error(int status) {
    return "the GPU server's library could not make a handle (status " + std::to_string(status) +
           "); its worker.log may say why";
}

int create(LibraryArguments& in, const LibraryCalls& calls, uint32_t number, std::string& error) {
    const uint64_t name = in.word();
    if (in.failed()) return Status::INVALID_VALUE;
    Session& session = in.session();
    MathLibrary* const library = MathLibrary::find(session, number, error);
    if (!library) return Status::NOT_INITIALIZED;
    auto charge = session.host_charge(OBJECT_BYTES);
    if (!charge) return Status::ALLOC_FAILED;  // the answer says why
    auto object = std::make_shared<LibraryObject>(session, *library, number, std::move(*charge));
    // What a library takes of the device for a handle is charged as a module's memory is.
    int status = Status::SUCCESS;
    const void* charged = nullptr;
    const CUresult result = make_charged(
        session, 0, nullptr, charged,
        [&](const void** made) {
            status = calls.create(in, *library, *object);
            *made = object.get();
            return status ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
        },
        [&](const void*) { return object->end(), CUDA_SUCCESS; });
    if (status) return error = creation_error(status), status;
    if (result != CUDA_SUCCESS) {
        error = "the slice's memory has no room for what the library takes of it";
        return Status::ALLOC_FAILED;
    }
    return (name & wire::NAMED_BY_SHIM) && session.library_objects.add(name, std::move(object))
               ? Status::SUCCESS
               : Status::INVALID_VALUE;
}

// A handle while a call has it, and nobody else: until then a call that `hands_over` lets later requests of
// the program be served.  The last use ends a handle that its program has destroyed.
class Use {
  public:
    Use(Session& session, std::shared_ptr<LibraryObject>& object, bool hands_over)
        : session_(session), object_(object), alone_(object->in_use, std::try_to_lock) {
        if (alone_) return;
        if (hands_over)
            session.wait([this] { return alone_.lock(), CUDA_SUCCESS; });
        else
            alone_.lock();
    }
    ~Use() {
        alone_.unlock();
        if (object_.use_count() > 1) return;
        std::lock_guard allocating(session_.lease().allocation_mutex);
        object_.reset();
    }
    Use(const Use&) = delete;

  private:
    Session& session_;
    std::shared_ptr<LibraryObject>& object_;
    std::unique_lock<std::mutex> alone_;
};

// What a library loads of its code at a call, charged to the handle: measured at its first calls, and at some
// of all others, unless anybody allocates or frees meanwhile, whose memory is charged already.
class CodeOfCall {
  public:
    CodeOfCall(Lease& lease, LibraryObject& object) : lease_(lease), object_(object) {
        const uint64_t calls = ++object.calls;
        if (!lease.loads_lazily || (calls > ALWAYS && calls % SOMETIMES)) return;
        const std::unique_lock alone(lease.allocation_mutex, std::try_to_lock);
        if (alone && (books_ = lease.books())) before_ = lease.footprint.bytes();
    }
    // Where the slice has no room for it, the next call is refused.
    void charge() {
        if (!before_) return;
        const std::unique_lock alone(lease_.allocation_mutex, std::try_to_lock);
        if (!alone || lease_.books() != books_) return;
        const auto after = lease_.footprint.bytes();
        if (after && *after > *before_) lease_.grow_module(&object_, *after - *before_);
    }

  private:
    static constexpr uint64_t ALWAYS = 64, SOMETIMES = 64;
    Lease& lease_;
    LibraryObject& object_;
    std::optional<std::pair<uint64_t, uint64_t>> books_;
    std::optional<uint64_t> before_;
};

// Returns the library's status; `error` may get a sentence.  The program waits for what is `asked`: of what
// it only queues, the next request may depend, which therefore stays behind.
int serve(Session& session, uint32_t number, uint32_t function, uint64_t stream_name, std::string_view words,
          bool asked, std::vector<char>& outputs, std::string& error) {
    CUstream stream;
    const LibraryCalls* const calls = calls_of(number);
    if (!calls) return error = "this worker knows no such library", Status::NOT_SUPPORTED;
    if (!session.handle(stream_name, Kind::stream, stream)) return Status::INVALID_VALUE;
    LibraryArguments in(session, words, stream, outputs);
    if (function == libraries::CREATE) return create(in, *calls, number, error);
    const uint64_t name = in.word();
    in.object = session.library_objects.find(name);
    if (!in.object || in.object->number != number) return Status::NOT_INITIALIZED;
    const bool destroys = function == libraries::DESTROY;
    const Use use(session, in.object, asked || destroys);
    if (!in.object->object && !destroys) return Status::NOT_INITIALIZED;  // ended while this one waited
    if (destroys) {
        session.library_objects.drop(name);
        session.wait([&] { return in.object->end(), CUDA_SUCCESS; });  // which may wait for the device
        return Status::SUCCESS;
    }
    session.lease().time_slicing.before_launch();
    session.memory_checks.apply(session.cuda().set_memory_check);
    if (!session.lease().grow_module(in.object.get(), 0))
        return error = "the slice's memory has no room for what the library has loaded", calls->no_memory;
    CodeOfCall code(session.lease(), *in.object);
    int status;
    try {
        status = calls->run(in, function);
        code.charge();
    } catch (const std::bad_alloc&) {
        status = calls->no_memory;
        in.reason = in.name + std::string(": the slice's host memory has no room for what it computes with");
    }
    if (status) {
        outputs.clear();
        if (error.empty()) error = in.reason;
        if (error.empty())
            error = in.name + std::string(" was refused with status ") +
                    std::to_string(in.own_status ? in.own_status : status);
    }
    return status;
}
}  // namespace

MathLibrary* MathLibrary::find(Session& session, uint32_t number, std::string& error) {
    static std::mutex mutex;
    static std::map<uint32_t, std::unique_ptr<MathLibrary>> loaded;
    const uint32_t version = number >> 16, cuda = libraries::cuda_of(number);
    if (!cuda) return error = "this worker knows no such version of the library", nullptr;
    std::lock_guard lock(mutex);
    std::unique_ptr<MathLibrary>& its = loaded[number];
    if (its) return its.get();
    const std::string name = std::string(calls_of(number)->name) + "." + std::to_string(version);
    void* library = nullptr;
    for (const std::string& place : places(session.cuda())) {
        if ((library = ::dlopen((place + name).c_str(), RTLD_NOW | RTLD_LOCAL))) break;
        if (error.empty()) error = ::dlerror();
    }
    if (!library) {
        const bool of_both = (number & 0xffff) == libraries::CUDNN;
        const std::string extra = of_both ? "12] or [server-cu13" : std::to_string(cuda);
        error = "the GPU server has no " + name + ", which this program needs (" + error +
                "): its administrator installs gpukernel[server-cu" + extra + "] there";
        return nullptr;
    }
    error.clear();
    its = std::make_unique<MathLibrary>();
    its->library_ = library;
    return its.get();
}

void* MathLibrary::function(const char* name) const { return ::dlsym(library_, name); }

LibraryObject::~LibraryObject() {
    end();
    session.lease().refund_module(this);
}
void LibraryObject::end() {
    for (const auto& [name, its] : beside) its.destroy(its.object);
    beside.clear();
    extra.reset();
    if (void* const last = std::exchange(object, nullptr); last && destroy) destroy(last);
}

std::shared_ptr<LibraryObject> LibraryObjects::find(uint64_t name) const {
    std::lock_guard lock(mutex_);
    const auto it = objects_.find(name);
    return it == objects_.end() ? nullptr : it->second;
}
bool LibraryObjects::add(uint64_t name, std::shared_ptr<LibraryObject> object) {
    std::lock_guard lock(mutex_);
    return objects_.try_emplace(name, std::move(object)).second;
}
bool LibraryObjects::drop(uint64_t name) {
    std::shared_ptr<LibraryObject> last;  // destroyed without the lock
    std::lock_guard lock(mutex_);
    const auto it = objects_.find(name);
    if (it == objects_.end()) return false;
    last = std::move(it->second);
    objects_.erase(it);
    return true;
}
void LibraryObjects::clear() {
    std::map<uint64_t, std::shared_ptr<LibraryObject>> all;
    std::lock_guard lock(mutex_);
    all.swap(objects_);
}

// --- arguments ---

uint64_t LibraryArguments::word() {
    uint64_t value = 0;
    if (words_.size() - at_ < sizeof value) return failed_ = true, 0;
    std::memcpy(&value, words_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
}

const void* LibraryArguments::bytes(size_t size) {
    const size_t padded = (size + 7) / 8 * 8;
    if (words_.size() - at_ < padded) return failed_ = true, nullptr;
    const char* const from = words_.data() + at_;
    at_ += padded;
    return from;
}

HostInts LibraryArguments::ints() {
    const uint64_t count = word();
    const void* const from = count <= words_.size() / sizeof(int) ? bytes(count * sizeof(int)) : fail();
    std::vector<int> values(from ? count : 0);
    if (count && from) std::memcpy(values.data(), from, count * sizeof(int));
    return HostInts(std::move(values));
}

bool LibraryArguments::in_lease(uint64_t address, uint64_t bytes) const {
    return session_.lease().valid(address, bytes);
}

void* LibraryArguments::device() {
    const uint64_t address = word();
    if (address && !in_lease(address, 1)) failed_ = true;
    return reinterpret_cast<void*>(address);
}

void* LibraryArguments::place() {
    const uint64_t address = word();
    return reinterpret_cast<void*>(in_lease(address, 1) ? address : 0);
}

void* LibraryArguments::space(size_t bytes) {
    const uint64_t address = word();
    if (address && bytes && !in_lease(address, bytes)) failed_ = true;
    return reinterpret_cast<void*>(address);
}

const void* LibraryArguments::scalar(size_t size) { return inout(size); }

// The program's own library sent a value, which no library can change there.
void* LibraryArguments::inout(size_t size) {
    if (!on_host) {
        const uint64_t address = word();
        if (!size || !in_lease(address, size)) failed_ = true;
        return reinterpret_cast<void*>(address);
    }
    const void* const from = bytes(size);
    if (!from || !size || size > SCALAR_BYTES || scalars_ == MOST_SCALARS) return failed_ = true, nullptr;
    return std::memcpy(scalar_[scalars_++], from, size);
}

void* LibraryArguments::result(size_t size) {
    if (!on_host) return inout(size);
    if (!size || size > SCALAR_BYTES || to_host_) return failed_ = true, nullptr;
    to_host_ = true, result_bytes_ = size;
    return std::memset(result_, 0, size);
}

void* LibraryArguments::made(const char* create, const char* destroy, uint32_t kind) {
    constexpr size_t MOST_KINDS = 64;
    const std::string key = create + std::to_string(kind);
    if (const auto it = object->beside.find(key); it != object->beside.end()) return it->second.object;
    auto* const make = reinterpret_cast<int (*)(void**)>(object->library.function(create));
    auto* const end = reinterpret_cast<int (*)(void*)>(object->library.function(destroy));
    void* its = nullptr;
    if (!make || !end || object->beside.size() == MOST_KINDS || make(&its)) return fail();
    object->beside[key] = {its, end};
    return its;
}

void* LibraryArguments::on_the_host(std::vector<std::vector<char>>& own, uint64_t size) {
    if (!size) return nullptr;
    const uint64_t last = own.empty() ? 0 : own.back().size();
    if (size <= last) return own.back().data();
    if (size > HOST_ROOM) return failed_ = true, nullptr;
    // What there was stays, and nobody waits for the calls that may use it.  Each is twice as large as the
    // last where there is room, so that all together are no more than twice the newest.
    HostCharge& charge = object->charge;
    uint64_t bytes = std::min(std::max(size, 2 * last), HOST_ROOM);
    if (!charge.grow(charge.bytes() + bytes) && !charge.grow(charge.bytes() + (bytes = size)))
        return no_room_ = true, reason = "the slice's host memory has no room for a workspace", fail();
    try {
        return own.emplace_back(bytes).data();
    } catch (const std::bad_alloc&) {
        charge.shrink(charge.bytes() - bytes);
        throw;
    }
}

void* LibraryArguments::room(size_t) {
    if (rooms_ == SCALAR_BYTES / sizeof(uint64_t)) return failed_ = true, nullptr;
    return std::memset(result_ + sizeof(uint64_t) * rooms_++, 0, sizeof(uint64_t));
}

int LibraryArguments::lacking() { return lacks_ = true, Status::NOT_SUPPORTED; }

int common_status(LibraryArguments& in, int status, const OwnStatuses& own) {
    if (in.lacks()) return Status::NOT_SUPPORTED;
    if (in.no_room()) return in.own_status = own.alloc_failed, Status::ALLOC_FAILED;
    in.own_status = status;
    return !status                         ? Status::SUCCESS
           : status == own.not_initialized ? Status::NOT_INITIALIZED
           : status == own.alloc_failed    ? Status::ALLOC_FAILED
           : status == own.invalid_value   ? Status::INVALID_VALUE
           : status == own.not_supported   ? Status::NOT_SUPPORTED
                                           : Status::EXECUTION_FAILED;
}

void LibraryArguments::waiting(const std::function<void()>& work) {
    session_.wait([&] { return work(), CUDA_SUCCESS; }, stream_);
    session_.lease().finished();
}

// --- the calls of the wire ---

CUresult serve_library_call(Session& session, Reader& in, Writer&) {
    const auto request = wire::LibraryCallRequest::read(in);
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    std::vector<char> none;
    std::string error;
    const int status = serve(session, request.library, request.function, request.stream, request.arguments,
                             false, none, error);
    if (status && !error.empty()) session.warn(error);
    const LibraryCalls* const calls = calls_of(request.library);
    return calls && calls->result_of ? calls->result_of(status) : result_of(status);
}

CUresult serve_library_ask(Session& session, Reader& in, Writer& out) {
    const auto request = wire::LibraryAskRequest::read(in);
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    if (session.kept_error() != CUDA_SUCCESS) return session.kept_error();
    std::vector<char> outputs;
    std::string error;
    const int status = serve(session, request.library, request.function, request.stream, request.arguments,
                             true, outputs, error);
    const std::string_view bytes =
        status ? std::string_view(error) : std::string_view(outputs.data(), outputs.size());
    wire::LibraryAskAnswer{status, bytes}.write(out);
    return CUDA_SUCCESS;
}

}  // namespace gpukernel::worker
