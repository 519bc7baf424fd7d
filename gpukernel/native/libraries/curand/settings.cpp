// cuRAND's functions on generators: the same in the program and beside the simulated GPU.
#include <string>

#include "libraries/curand/generator.h"

namespace gpukernel::libraries {
const Statuses STATUSES{curand::NOT_INITIALIZED, curand::ALLOCATION_FAILED, curand::OUT_OF_RANGE,
                        curand::LAUNCH_FAILURE,  curand::INTERNAL_ERROR,    curand::ARCH_MISMATCH};
}

namespace gpukernel::libraries::curand {

namespace {
constexpr int VERSION = 10310;

// Calls `change` with the generator's settings, and lets it begin again.
template <class Change>
int set(void* handle, Change change) {
    StreamHandle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    Generator& generator = *generator_of(*own);
    if (const int status = change(generator)) return status;
    ++generator.epoch, generator.position = 0;
    return SUCCESS;
}
int run(void* handle, Kind kind, void* to, size_t count, double mean = 0, double deviation = 1) {
    StreamHandle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    if (!count) return SUCCESS;
    if (!to || count > MOST_NUMBERS || !(deviation >= 0)) return OUT_OF_RANGE;
    // Normal numbers come in pairs.
    if (kind >= NORMAL && kind <= LOG_NORMAL_DOUBLE && count % 2) return LENGTH_NOT_MULTIPLE;
    return generate(*own, *generator_of(*own), kind,
                    {reinterpret_cast<uint64_t>(to), count, mean, deviation});
}
}  // namespace

Generator* generator_of(StreamHandle& handle) { return static_cast<Generator*>(handle.more.get()); }

GPUKERNEL_EXPORT int curandCreateGenerator(void** place, int type) {
    if (!place) return OUT_OF_RANGE;
    *place = nullptr;
    if (!is_type(type)) {
        complain("curandCreateGenerator: generators of type " + std::to_string(type) +
                 " (MTGP32 and quasirandom ones) are not supported on a slice");
        return type == 141 || (type >= 200 && type <= 204) ? ARCH_MISMATCH : TYPE_ERROR;
    }
    type = type == DEFAULT ? XORWOW : type;
    if (const int status = create(place, type)) return status;
    auto generator = std::make_shared<Generator>();
    generator->type = type;
    handle_of(*place)->more = std::move(generator);
    return SUCCESS;
}
GPUKERNEL_EXPORT int curandDestroyGenerator(void* generator) { return destroy(generator); }

GPUKERNEL_EXPORT int curandSetStream(void* handle, CUstream stream) {
    StreamHandle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    own->stream = stream;
    return SUCCESS;
}
GPUKERNEL_EXPORT int curandSetPseudoRandomGeneratorSeed(void* handle, unsigned long long seed) {
    return set(handle, [seed](Generator& generator) { return generator.seed = seed, SUCCESS; });
}
GPUKERNEL_EXPORT int curandSetGeneratorOffset(void* handle, unsigned long long offset) {
    return set(handle, [offset](Generator& generator) {
        if (generator.type == MT19937) return TYPE_ERROR;
        return generator.offset = offset, SUCCESS;
    });
}
GPUKERNEL_EXPORT int curandSetGeneratorOrdering(void* handle, int ordering) {
    return set(handle, [ordering](Generator& generator) {
        if (!is_ordering(ordering)) return OUT_OF_RANGE;
        return generator.ordering = ordering, SUCCESS;
    });
}
GPUKERNEL_EXPORT int curandSetQuasiRandomGeneratorDimensions(void* handle, unsigned) {
    return handle_of(handle) ? TYPE_ERROR : NOT_INITIALIZED;
}

GPUKERNEL_EXPORT int curandGenerate(void* generator, unsigned* to, size_t count) {
    return run(generator, BITS, to, count);
}
GPUKERNEL_EXPORT int curandGenerateLongLong(void* handle, unsigned long long*, size_t) {
    return handle_of(handle) ? TYPE_ERROR
                             : NOT_INITIALIZED;  // quasirandom generators of 64 bits alone have it
}
GPUKERNEL_EXPORT int curandGenerateUniform(void* generator, float* to, size_t count) {
    return run(generator, UNIFORM, to, count);
}
GPUKERNEL_EXPORT int curandGenerateUniformDouble(void* generator, double* to, size_t count) {
    return run(generator, UNIFORM_DOUBLE, to, count);
}
GPUKERNEL_EXPORT int curandGenerateNormal(void* generator, float* to, size_t count, float mean,
                                          float deviation) {
    return run(generator, NORMAL, to, count, mean, deviation);
}
GPUKERNEL_EXPORT int curandGenerateNormalDouble(void* generator, double* to, size_t count, double mean,
                                                double deviation) {
    return run(generator, NORMAL_DOUBLE, to, count, mean, deviation);
}
GPUKERNEL_EXPORT int curandGenerateLogNormal(void* generator, float* to, size_t count, float mean,
                                             float deviation) {
    return run(generator, LOG_NORMAL, to, count, mean, deviation);
}
GPUKERNEL_EXPORT int curandGenerateLogNormalDouble(void* generator, double* to, size_t count, double mean,
                                                   double deviation) {
    return run(generator, LOG_NORMAL_DOUBLE, to, count, mean, deviation);
}
GPUKERNEL_EXPORT int curandGeneratePoisson(void* generator, unsigned* to, size_t count, double mean) {
    return mean > 0 && mean <= 400000 ? run(generator, POISSON, to, count, mean) : OUT_OF_RANGE;
}
GPUKERNEL_EXPORT int curandGenerateSeeds(void* handle) {
    return handle_of(handle) ? SUCCESS : NOT_INITIALIZED;
}

GPUKERNEL_EXPORT int curandGetVersion(int* version) {
    if (!version) return OUT_OF_RANGE;
    *version = VERSION;
    return SUCCESS;
}
GPUKERNEL_EXPORT int curandGetProperty(int type, int* value) {
    if (!value || type < 0 || type > 2) return OUT_OF_RANGE;
    *value = type == 0 ? VERSION / 1000 : type == 1 ? VERSION / 100 % 10 : VERSION % 100;
    return SUCCESS;
}

#include "curand_unsupported.inc"

}  // namespace gpukernel::libraries::curand
