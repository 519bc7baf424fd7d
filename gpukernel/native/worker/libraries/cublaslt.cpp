// cuBLASLt: its descriptors, made anew for each call from what the program's have, and its few calls.
#include <cstring>

#include "libraries/cublaslt/descriptors.h"
#include "worker/libraries/libraries.h"

namespace gpukernel::worker {

using namespace libraries::cublaslt;
using namespace libraries::cublas;

namespace {
// A descriptor of the worker's library for the time of one call.
class Descriptor {
  public:
    Descriptor(const MathLibrary& library, const std::string& kind) : library_(library), kind_(kind) {}
    ~Descriptor() {
        if (made_) function<int (*)(void*)>("Destroy")(made_);
    }
    Descriptor(const Descriptor&) = delete;

    template <class... Values>
    int make(Values... values) {
        auto* const create = function<int (*)(void**, Values...)>("Create");
        return create && function<int (*)(void*)>("Destroy") ? create(&made_, values...) : NOT_SUPPORTED;
    }
    // Those of the attributes that the program has set; what is an address must lie in the lease.
    int set(LibraryArguments& in, std::span<const Attribute> attributes, const void* from, uint64_t given) {
        auto* const set = function<int (*)(void*, int, const void*, size_t)>("SetAttribute");
        if (!set) return NOT_SUPPORTED;
        for (const Attribute& one : attributes) {
            if (!(given >> one.number & 1)) continue;
            const char* const value = static_cast<const char*>(from) + one.offset;
            uint64_t address = 0;
            if (one.address) std::memcpy(&address, value, sizeof address);
            if (address && !in.in_lease(address, 1)) return INVALID_VALUE;
            if (const int status = set(made_, one.number, value, one.bytes)) return status;
        }
        return SUCCESS;
    }
    void* get() const { return made_; }

  private:
    template <class Function>
    Function function(const char* what) const {
        return reinterpret_cast<Function>(library_.function((kind_ + what).c_str()));
    }
    const MathLibrary& library_;
    const std::string kind_;
    void* made_ = nullptr;
};

template <class T>
bool read(LibraryArguments& in, T& value) {
    const void* const from = in.bytes(sizeof value);
    if (from) std::memcpy(&value, from, sizeof value);
    return from;
}

// One layout of a call, which is `given` or null.
class Matrix {
  public:
    explicit Matrix(const MathLibrary& library) : descriptor_(library, "cublasLtMatrixLayout") {}
    int read(LibraryArguments& in) {
        Layout layout{};
        if (!worker::read(in, layout)) return INVALID_VALUE;
        if (const int status =
                descriptor_.make(static_cast<int>(layout.type), layout.rows, layout.columns, layout.ld))
            return status;
        // What was not given to its creation, where it is not as it is made.
        uint64_t given = uint64_t{layout.order != 0} << 1 | uint64_t{layout.batches != 1} << 5 |
                         uint64_t{layout.batch_step != 0} << 6 | uint64_t{layout.plane != 0} << 7 |
                         uint64_t{layout.batch_mode != 0} << 8;
        return descriptor_.set(in, layout_attributes, &layout, given);
    }
    void* get() const { return descriptor_.get(); }

  private:
    Descriptor descriptor_;
};

// What describes a product: the operation, and the four matrices.
struct Product {
    Operation operation{};
    Descriptor descriptor;
    Matrix a, b, c, d;
    explicit Product(const MathLibrary& library)
        : descriptor(library, "cublasLtMatmulDesc"), a(library), b(library), c(library), d(library) {}
    int read(LibraryArguments& in) {
        if (!worker::read(in, operation)) return INVALID_VALUE;
        if (const int status = descriptor.make(operation.compute, operation.scale)) return status;
        if (const int status =
                descriptor.set(in, operation_attributes, &operation, operation.given & ~uint64_t{3}))
            return status;
        for (Matrix* matrix : {&a, &b, &c, &d})
            if (const int status = matrix->read(in)) return status;
        return SUCCESS;
    }
};

template <class Function>
Function find(LibraryArguments& in, const char* name) {
    in.name = name;
    return reinterpret_cast<Function>(in.object->library.function(name));
}

int matmul(LibraryArguments& in) {
    auto* const function =
        find<int (*)(void*, void*, const void*, const void*, void*, const void*, void*, const void*,
                     const void*, void*, void*, void*, const void*, void*, size_t, CUstream)>(
            in, "cublasLtMatmul");
    if (!function) return NOT_SUPPORTED;
    Product product(in.object->library);
    if (const int status = product.read(in)) return status;
    const bool chosen = in.word();
    Algorithm algorithm{};
    read(in, algorithm);
    const uint64_t bytes = in.word();
    void* const workspace = in.device();
    void *A = in.device(), *B = in.device(), *C = in.device(), *D = in.device();
    const int pointers = product.operation.pointers;
    const size_t scalar = data_bytes(product.operation.scale);
    if (!scalar || pointers < ON_HOST || pointers > ALPHA_VECTOR_BETA_HOST) return INVALID_VALUE;
    in.on_host = pointers == ON_HOST;
    const void* const alpha = in.scalar(scalar);
    in.on_host = pointers == ON_HOST || pointers == ALPHA_VECTOR_BETA_HOST;
    static constexpr double zero[2] = {};
    const void* const beta = pointers == ALPHA_VECTOR_BETA_ZERO ? zero : in.scalar(scalar);
    if (in.failed() || (workspace && bytes && !in.in_lease(reinterpret_cast<uint64_t>(workspace), bytes)))
        return INVALID_VALUE;
    return function(in.handle(), product.descriptor.get(), alpha, A, product.a.get(), B, product.b.get(),
                    beta, C, product.c.get(), D, product.d.get(), chosen ? &algorithm : nullptr, workspace,
                    bytes, in.stream());
}

int heuristic(LibraryArguments& in) {
    auto* const function =
        find<int (*)(void*, void*, void*, void*, void*, void*, void*, int, Heuristic*, int*)>(
            in, "cublasLtMatmulAlgoGetHeuristic");
    if (!function) return NOT_SUPPORTED;
    Product product(in.object->library);
    if (const int status = product.read(in)) return status;
    Preference preference{};
    Descriptor wishes(in.object->library, "cublasLtMatmulPreference");
    if (!read(in, preference)) return INVALID_VALUE;
    if (const int status = wishes.make()) return status;
    if (const int status = wishes.set(in, preference_attributes, &preference, preference.given))
        return status;
    const uint64_t most = in.word();
    if (in.failed() || !most || most > MOST_HEURISTICS) return INVALID_VALUE;
    Heuristic found[MOST_HEURISTICS] = {};
    int count = 0;
    const int status =
        function(in.handle(), product.descriptor.get(), product.a.get(), product.b.get(), product.c.get(),
                 product.d.get(), wishes.get(), static_cast<int>(most), found, &count);
    const char* const from = reinterpret_cast<const char*>(found);
    if (!status)
        in.outputs().assign(
            from, from + sizeof *found * static_cast<size_t>(std::min<int>(count, MOST_HEURISTICS)));
    return status;
}

int check(LibraryArguments& in) {
    auto* const function =
        find<int (*)(void*, void*, void*, void*, void*, void*, const Algorithm*, Heuristic*)>(
            in, "cublasLtMatmulAlgoCheck");
    if (!function) return NOT_SUPPORTED;
    Product product(in.object->library);
    if (const int status = product.read(in)) return status;
    Algorithm algorithm{};
    if (!read(in, algorithm)) return INVALID_VALUE;
    Heuristic found{};
    const int status = function(in.handle(), product.descriptor.get(), product.a.get(), product.b.get(),
                                product.c.get(), product.d.get(), &algorithm, &found);
    const char* const from = reinterpret_cast<const char*>(&found);
    if (!status) in.outputs().assign(from, from + sizeof found);
    return status;
}

int transform(LibraryArguments& in) {
    auto* const function =
        find<int (*)(void*, void*, const void*, const void*, void*, const void*, const void*, void*, void*,
                     void*, CUstream)>(in, "cublasLtMatrixTransform");
    if (!function) return NOT_SUPPORTED;
    const MathLibrary& library = in.object->library;
    Transformation asked{};
    Descriptor descriptor(library, "cublasLtMatrixTransformDesc");
    Matrix a(library), b(library), c(library);
    if (!read(in, asked)) return INVALID_VALUE;
    if (const int status = descriptor.make(asked.scale)) return status;
    if (const int status = descriptor.set(in, transformation_attributes, &asked, asked.given & ~uint64_t{1}))
        return status;
    if (const int status = a.read(in)) return status;
    const bool with_b = in.word();
    if (with_b) {
        if (const int status = b.read(in)) return status;
    } else {
        in.bytes(sizeof(Layout));
    }
    if (const int status = c.read(in)) return status;
    void *A = in.device(), *B = in.device(), *C = in.device();
    in.on_host = asked.pointers == ON_HOST;
    const void *alpha = in.scalar(data_bytes(asked.scale)), *beta = in.scalar(data_bytes(asked.scale));
    if (in.failed()) return INVALID_VALUE;
    return function(in.handle(), descriptor.get(), alpha, A, a.get(), beta, B, with_b ? b.get() : nullptr, C,
                    c.get(), in.stream());
}

int create(LibraryArguments&, MathLibrary& library, LibraryObject& object) {
    auto* const make = reinterpret_cast<int (*)(void**)>(library.function("cublasLtCreate"));
    object.destroy = reinterpret_cast<int (*)(void*)>(library.function("cublasLtDestroy"));
    return make && object.destroy ? make(&object.object) : NOT_INITIALIZED;
}

int run(LibraryArguments& in, uint32_t function) {
    switch (function) {
        case MATMUL:
            return matmul(in);
        case HEURISTIC:
            return heuristic(in);
        case CHECK:
            return check(in);
        case TRANSFORM:
            return transform(in);
        default:
            return NOT_SUPPORTED;
    }
}
}  // namespace

const LibraryCalls cublaslt_calls{"libcublasLt.so", create, run};

}  // namespace gpukernel::worker
