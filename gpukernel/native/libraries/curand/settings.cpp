// cuRAND's functions on generators: the same in the program and beside the simulated GPU.
#include <string>
#include <vector>

#include "libraries/curand/generator.h"
#include "libraries/curand/sobol.h"

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
    Generator& generator = *generator_of(*own);
    if (kind == (is_long(generator.type) ? BITS : LONG_BITS)) return TYPE_ERROR;
    // Quasirandom numbers are those of one dimension after another; other normal numbers come in pairs.
    if (is_quasi(generator.type)) {
        if (count % generator.dimensions()) return LENGTH_NOT_MULTIPLE;
    } else if (kind >= NORMAL && kind <= LOG_NORMAL_DOUBLE && count % 2) {
        return LENGTH_NOT_MULTIPLE;
    }
    return generate(*own, generator, kind, {reinterpret_cast<uint64_t>(to), count, mean, deviation});
}

// The direction numbers of all dimensions, made when they are first asked for.
template <class Word>
Word* directions(bool scrambled) {
    constexpr size_t BITS_OF_ONE = sizeof(Word) * 8;
    static const auto make = [](Directions (*of)(uint32_t)) {
        std::vector<Word> all(MOST_DIMENSIONS * BITS_OF_ONE);
        for (uint32_t dimension = 0; dimension < MOST_DIMENSIONS; ++dimension) {
            const Directions found = of(dimension);
            for (size_t i = 0; i < BITS_OF_ONE; ++i)
                all[dimension * BITS_OF_ONE + i] = static_cast<Word>(found[i] >> (64 - BITS_OF_ONE));
        }
        return all;
    };
    if (scrambled) {
        static std::vector<Word> made = make(scrambled_directions);
        return made.data();
    }
    static std::vector<Word> made = make(sobol_directions);
    return made.data();
}
template <class Word>
int give_directions(void* place, int set, int plain) {
    if (!place || (set != plain && set != plain + 1)) return OUT_OF_RANGE;
    *static_cast<Word**>(place) = directions<Word>(set == plain + 1);
    return SUCCESS;
}
template <class Word>
int give_constants(Word** place) {
    static std::vector<Word> made = [] {
        std::vector<Word> all(MOST_DIMENSIONS);
        for (uint32_t dimension = 0; dimension < MOST_DIMENSIONS; ++dimension)
            all[dimension] = static_cast<Word>(scramble_constant(dimension) >> (64 - sizeof(Word) * 8));
        return all;
    }();
    if (!place) return OUT_OF_RANGE;
    *place = made.data();
    return SUCCESS;
}
}  // namespace

Generator* generator_of(StreamHandle& handle) { return static_cast<Generator*>(handle.more.get()); }

GPUKERNEL_EXPORT int curandCreateGenerator(void** place, int type) {
    if (!place) return OUT_OF_RANGE;
    *place = nullptr;
    if (!is_type(type)) {
        complain("curandCreateGenerator: generators of type " + std::to_string(type) +
                 (type == 141 ? " (MTGP32)" : "") + " are not supported on a slice");
        return type == 141 ? ARCH_MISMATCH : TYPE_ERROR;
    }
    type = type == DEFAULT ? XORWOW : type == QUASI_DEFAULT ? SOBOL32 : type;
    if (const int status = create(place, type)) return status;
    auto generator = std::make_shared<Generator>();
    generator->type = type;
    if (is_quasi(type)) generator->ordering = 201, generator->seed = 1;
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
    return set(handle, [seed](Generator& generator) {
        if (is_quasi(generator.type)) return TYPE_ERROR;
        return generator.seed = seed, SUCCESS;
    });
}
GPUKERNEL_EXPORT int curandSetGeneratorOffset(void* handle, unsigned long long offset) {
    return set(handle, [offset](Generator& generator) {
        if (generator.type == MT19937) return TYPE_ERROR;
        return generator.offset = offset, SUCCESS;
    });
}
GPUKERNEL_EXPORT int curandSetGeneratorOrdering(void* handle, int ordering) {
    StreamHandle* const own = handle_of(handle);
    // A quasirandom generator has one only, and goes on.
    if (own && is_quasi(generator_of(*own)->type) && ordering == 201) return SUCCESS;
    return set(handle, [ordering](Generator& generator) {
        if (!is_ordering(generator.type, ordering)) return OUT_OF_RANGE;
        return generator.ordering = ordering, SUCCESS;
    });
}
GPUKERNEL_EXPORT int curandSetQuasiRandomGeneratorDimensions(void* handle, unsigned dimensions) {
    StreamHandle* const own = handle_of(handle);
    // With as many as it has, a generator goes on.
    if (own && is_quasi(generator_of(*own)->type) && generator_of(*own)->dimensions() == dimensions)
        return SUCCESS;
    return set(handle, [dimensions](Generator& generator) {
        if (!is_quasi(generator.type)) return TYPE_ERROR;
        if (!dimensions || dimensions > MOST_DIMENSIONS) return OUT_OF_RANGE;
        return generator.seed = dimensions, SUCCESS;
    });
}

GPUKERNEL_EXPORT int curandGetDirectionVectors32(void* place, int set) {
    return give_directions<unsigned>(place, set, 101);
}
GPUKERNEL_EXPORT int curandGetDirectionVectors64(void* place, int set) {
    return give_directions<unsigned long long>(place, set, 103);
}
GPUKERNEL_EXPORT int curandGetScrambleConstants32(unsigned** place) { return give_constants(place); }
GPUKERNEL_EXPORT int curandGetScrambleConstants64(unsigned long long** place) {
    return give_constants(place);
}

GPUKERNEL_EXPORT int curandGenerate(void* generator, unsigned* to, size_t count) {
    return run(generator, BITS, to, count);
}
// Quasirandom generators of 64 bits have it, and no other.
GPUKERNEL_EXPORT int curandGenerateLongLong(void* generator, unsigned long long* to, size_t count) {
    return run(generator, LONG_BITS, to, count);
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
