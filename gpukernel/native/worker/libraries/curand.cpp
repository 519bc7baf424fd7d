// cuRAND: a generator is set again where the program has set its own.
#include <cstring>

#include "libraries/cublas/types.h"
#include "libraries/curand/generator.h"
#include "libraries/curand/sobol.h"
#include "worker/libraries/libraries.h"
#include "worker/session/session.h"

namespace gpukernel::worker {

using namespace libraries::curand;
using Answer = libraries::cublas::Status;

namespace {
constexpr OwnStatuses OWN{NOT_INITIALIZED, ALLOCATION_FAILED, OUT_OF_RANGE, ARCH_MISMATCH};
constexpr const char* NAMES[KINDS] = {"curandGenerate",
                                      "curandGenerateUniform",
                                      "curandGenerateUniformDouble",
                                      "curandGenerateNormal",
                                      "curandGenerateNormalDouble",
                                      "curandGenerateLogNormal",
                                      "curandGenerateLogNormalDouble",
                                      "curandGeneratePoisson",
                                      "curandGenerateLongLong"};

template <class Function>
Function find(const MathLibrary& library, const char* name) {
    return reinterpret_cast<Function>(library.function(name));
}

int create(LibraryArguments& in, MathLibrary& library, LibraryObject& object) {
    object.destroy = find<int (*)(void*)>(library, "curandDestroyGenerator");
    auto* const version = find<int (*)(int*)>(library, "curandGetVersion");
    auto* const make = find<int (*)(void**, int)>(library, "curandCreateGenerator");
    const auto type = in.number<int>();
    if (in.failed() || !is_type(type)) return Answer::INVALID_VALUE;
    if (!object.destroy || !version || !make) return Answer::NOT_INITIALIZED;
    if (const int status = make(&object.object, type)) return common_status(in, status, OWN);
    int32_t answer[2] = {0, in.session().cuda().simulated()};
    version(&answer[0]);
    in.outputs().assign(reinterpret_cast<char*>(answer), reinterpret_cast<char*>(answer) + sizeof answer);
    return Answer::SUCCESS;
}

int apply(LibraryArguments& in, LibraryObject& object, const GeneratorSettings& settings) {
    const MathLibrary& library = object.library;
    auto* const stream = find<int (*)(void*, CUstream)>(library, "curandSetStream");
    auto* const seed =
        find<int (*)(void*, unsigned long long)>(library, "curandSetPseudoRandomGeneratorSeed");
    auto* const offset = find<int (*)(void*, unsigned long long)>(library, "curandSetGeneratorOffset");
    auto* const ordering = find<int (*)(void*, int)>(library, "curandSetGeneratorOrdering");
    auto* const dimensions =
        find<int (*)(void*, unsigned)>(library, "curandSetQuasiRandomGeneratorDimensions");
    const bool quasi = is_quasi(settings.type);
    if (!stream || !seed || !offset || !ordering || !dimensions) return ARCH_MISMATCH;
    if (!is_type(settings.type) || !is_ordering(settings.type, settings.ordering)) return OUT_OF_RANGE;
    if (quasi && (!settings.dimensions() || settings.dimensions() > MOST_DIMENSIONS)) return OUT_OF_RANGE;
    if (object.stream != in.stream()) {
        if (const int status = stream(object.object, in.stream())) return status;
        object.stream = in.stream();
    }
    if (object.modes == settings.epoch) return SUCCESS;
    if (const int status = quasi ? dimensions(object.object, static_cast<unsigned>(settings.dimensions()))
                                 : seed(object.object, settings.seed))
        return status;
    if (settings.ordering != 100 && !quasi)
        if (const int status = ordering(object.object, static_cast<int>(settings.ordering))) return status;
    if (settings.type != MT19937)
        if (const int status = offset(object.object, settings.offset)) return status;
    object.modes = settings.epoch;
    return SUCCESS;
}

int generate(LibraryArguments& in, uint32_t kind, const Order& order) {
    void* const to = reinterpret_cast<void*>(order.to);
    const size_t count = order.count;
    switch (kind) {
        case NORMAL:
        case LOG_NORMAL:
            return in.call<int (*)(void*, void*, size_t, float, float)>(
                in.handle(), to, count, static_cast<float>(order.mean), static_cast<float>(order.deviation));
        case NORMAL_DOUBLE:
        case LOG_NORMAL_DOUBLE:
            return in.call<int (*)(void*, void*, size_t, double, double)>(in.handle(), to, count, order.mean,
                                                                          order.deviation);
        case POISSON:
            return in.call<int (*)(void*, void*, size_t, double)>(in.handle(), to, count, order.mean);
        default:
            return in.call<int (*)(void*, void*, size_t)>(in.handle(), to, count);
    }
}

int run(LibraryArguments& in, uint32_t function) {
    if (function >= KINDS) return Answer::NOT_SUPPORTED;
    in.name = NAMES[function];
    GeneratorSettings settings;
    Order order;
    in.word();  // a handle's modes, of which there are none
    const void* const of_generator = in.bytes(sizeof settings);
    const void* const of_call = in.bytes(sizeof order);
    if (!of_generator || !of_call) return Answer::INVALID_VALUE;
    std::memcpy(&settings, of_generator, sizeof settings);
    std::memcpy(&order, of_call, sizeof order);
    if (!order.count || order.count > MOST_NUMBERS ||
        !in.in_lease(order.to, order.count * bytes_of(function)))
        return Answer::INVALID_VALUE;
    int status = apply(in, *in.object, settings);
    if (!status) status = generate(in, function, order);
    return common_status(in, status, OWN);
}
}  // namespace

const LibraryCalls curand_calls{"libcurand.so", create, run};

}  // namespace gpukernel::worker
