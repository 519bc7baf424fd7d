#include "simgpu_libraries/cudnn/graphs/random.h"

#include <numbers>

#include "simgpu_libraries/curand/bits.h"

namespace gpukernel::simgpu_libraries::cudnn {

namespace {
constexpr int64_t PIECE = 1 << 15;  // elements

double uniform(uint32_t bits) { return (static_cast<double>(bits) + 0.5) / 0x1p32; }
}  // namespace

int64_t WholeNumber::value(const Access& access, const char* what) const {
    if (number) return *number;
    tensor.check(access, false, what);
    return with_element(tensor.type, [&]<class E>(E) {
        return E::template get<int64_t>(*reinterpret_cast<const typename E::Type*>(tensor.address));
    });
}

int check(const Random& random) {
    switch (random.distribution) {
        case Random::BERNOULLI:
            return random.probability >= 0 && random.probability <= 1 ? SUCCESS : BAD_PARAM;
        case Random::UNIFORM:
            return random.least <= random.most ? SUCCESS : BAD_PARAM;
        case Random::NORMAL:
            return random.deviation >= 0 ? SUCCESS : BAD_PARAM;
        default:
            return BAD_PARAM;
    }
}

int draw(const Context& context, const Random& random, const WholeNumber& seed, const WholeNumber& offset,
         const Tensor& to) {
    return submit(context, parts(to.count(), PIECE), [=](uint64_t number, const Access& access) {
        const int64_t first = static_cast<int64_t>(number) * PIECE,
                      count = std::min(PIECE, to.count() - first);
        const auto key = static_cast<uint64_t>(seed.value(access, "the seed")),
                   at = static_cast<uint64_t>(offset.value(access, "the offset"));
        to.check(access, true, "y");
        const Tensor* const one[1] = {&to};
        Walk<1> walk(to, one, first);
        std::array<uint32_t, 4> four{};
        for (int64_t i = 0; i < count; ++i, walk.next()) {
            const auto place = static_cast<uint64_t>(first + i);
            if (!i || place % 4 == 0) four = curand::philox(at, place / 4, key);
            const double share = uniform(four[place % 4]);
            double value = share < random.probability ? 1 : 0;
            if (random.distribution == Random::UNIFORM) {
                value = random.least + share * (random.most - random.least);
            } else if (random.distribution == Random::NORMAL) {  // Box and Muller's two of two
                const double length = std::sqrt(-2 * std::log(uniform(four[place % 4 / 2 * 2]))),
                             angle = 2 * std::numbers::pi * uniform(four[place % 4 / 2 * 2 + 1]);
                value =
                    random.mean + random.deviation * length * (place % 2 ? std::sin(angle) : std::cos(angle));
            }
            put(to, walk.offset[0], value);
        }
    });
}

}  // namespace gpukernel::simgpu_libraries::cudnn
