"""Cases of cuRAND's quasirandom generators: SciPy's Sobol numbers in NVIDIA's documented order, and nets that stay nets when scrambled."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from scipy import stats

from tests.native.libraries.cublas_cases import first
from tests.native.libraries.curand_cases import Generator, differences
from tests.native.libraries.device import Array, Cases
from tests.real_gpu import REAL

__all__ = ["CASES"]

CASES = Cases()
case = CASES.add
DEFAULT, SOBOL32, SCRAMBLED32, SOBOL64, SCRAMBLED64 = 200, 201, 202, 203, 204
DIMENSIONS = 20000


def quasi(kind: int, dimensions: int = 1, offset: int = 0) -> Generator:
    """Return a generator of so many dimensions."""
    generator = Generator(kind)
    generator.done("curandSetQuasiRandomGeneratorDimensions", ctypes.c_uint(dimensions))
    if offset:
        generator.done("curandSetGeneratorOffset", ctypes.c_ulonglong(offset))
    return generator


def table(name: str, kind: Any, shape: tuple[int, ...], *words: int) -> np.ndarray[Any, Any]:
    """Return the numbers that a function of the library gives the address of."""
    place = ctypes.c_void_p()
    status = getattr(ctypes.CDLL("libcurand.so.10"), name)(ctypes.byref(place), *words)
    assert status == 0, f"{name}: {status}"
    assert place.value
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    return np.frombuffer(ctypes.string_at(place.value, size), kind).reshape(shape)


def points(count: int, dimensions: int, begin: int = 0) -> np.ndarray[Any, Any]:
    """Points of SciPy's sequence, a row for each dimension, as numbers of 32 bits."""
    sobol = stats.qmc.Sobol(dimensions, scramble=False, bits=32)
    if begin:
        sobol.fast_forward(begin)
    return np.asarray((sobol.random(count) * 2.0**32).T, np.uint64)


@case
def points_are_scipy_s_one_dimension_after_another() -> str:
    def one(dimensions: int, count: int, begin: int) -> str:
        wanted = points(count, dimensions, begin).reshape(-1)
        short = quasi(SOBOL32, dimensions, begin).take("curandGenerate", dimensions * count, np.uint32)
        if wrong := differences(short, wanted):
            return f"32: {wrong}"
        name = "curandGenerateLongLong"
        long = quasi(SOBOL64, dimensions, begin).take(name, dimensions * count, np.uint64)
        return differences(long >> np.uint64(32), wanted)

    sizes = ((1, 70_000, 0), (3, 33_000, 0), (700, 130, 70_001), (DIMENSIONS, 3, 1003))
    return first((wrong and f"{size}: {wrong}") for size in sizes if (wrong := one(*size)))


@case
def a_generator_goes_on_where_it_was() -> str:
    generator, wanted = quasi(DEFAULT, 2), points(100_000, 2)
    place = 0
    for count in (1, 40_001, 7, 59_991):
        got = generator.take("curandGenerate", 2 * count, np.uint32).reshape(2, -1)
        if wrong := differences(got.reshape(-1), wanted[:, place : place + count].reshape(-1)):
            return f"from {place}: {wrong}"
        place += count
        generator.done("curandSetGeneratorOrdering", 201)  # the one that there is
        generator.done("curandSetQuasiRandomGeneratorDimensions", ctypes.c_uint(2))
    generator.done("curandSetGeneratorOffset", ctypes.c_ulonglong(10))
    return differences(generator.take("curandGenerate", 2, np.uint32), wanted[:, 10])


@case
def the_last_points_are_followed_by_the_first() -> str:
    got = quasi(SOBOL32, 1, 2**32 - 2).take("curandGenerate", 5, np.uint32)
    before = [0x80000001, 0x00000001]  # the Gray codes 10…01 and 10…00, their bits reversed
    return differences(got, np.concatenate([np.array(before, np.uint64), points(3, 1)[0]]))


@case
def direction_vectors_make_the_same_points() -> str:
    short = table("curandGetDirectionVectors32", np.uint32, (DIMENSIONS, 32), 101)
    long = table("curandGetDirectionVectors64", np.uint64, (DIMENSIONS, 64), 103)
    if not np.array_equal(long[:, :32] >> np.uint64(32), short):
        return "those of 32 and of 64 bits differ"
    # Each direction has the lowest bit that it can have, and no lower one.
    lowest = np.uint64(1) << np.arange(63, -1, -1, dtype=np.uint64)
    if not np.array_equal(long & (np.uint64(2) * lowest - np.uint64(1)), np.broadcast_to(lowest, long.shape)):
        return "a direction ends elsewhere"
    index = np.arange(1000)
    gray = index ^ (index >> 1)
    made = np.zeros((DIMENSIONS, index.size), np.uint32)
    for bit in range(10):
        made ^= np.where(gray >> bit & 1, short[:, bit : bit + 1], np.uint32(0))
    return differences(made.reshape(-1), points(index.size, DIMENSIONS).reshape(-1))


@case
def numbers_are_those_of_nvidia_s_formulas() -> str:
    x = points(5000, 2, 1).reshape(-1) * 2.0**-32
    middle = stats.norm.ppf(x + 2.0**-33)
    one, two = (1.0, 2.0)
    single, double = ctypes.c_float, ctypes.c_double
    wanted: dict[tuple[int, str], tuple[Any, tuple[Any, ...], Any, float]] = {
        (SOBOL32, "curandGenerateUniform"): (np.float32, (), x + 2.0**-33, 2.0**-24),
        (SOBOL64, "curandGenerateUniform"): (np.float32, (), x + 2.0**-33, 2.0**-24),
        (SOBOL32, "curandGenerateUniformDouble"): (np.float64, (), x + 2.0**-32, 0),
        (SOBOL64, "curandGenerateUniformDouble"): (np.float64, (), x + 2.0**-54, 0),
    }
    for kind in (SOBOL32, SOBOL64):
        exact = middle if kind == SOBOL32 else stats.norm.ppf(x + 2.0**-54)
        wanted |= {
            (kind, "curandGenerateNormal"): (np.float32, (single(one), single(two)), 1 + 2 * middle, 2e-6),
            (kind, "curandGenerateNormalDouble"): (
                np.float64,
                (double(one), double(two)),
                1 + 2 * exact,
                1e-13,
            ),
            (kind, "curandGenerateLogNormalDouble"): (
                np.float64,
                (double(0), double(1)),
                np.exp(exact),
                1e-11,
            ),
        }

    def wrong(kind: int, name: str) -> str:
        dtype, arguments, numbers, tolerance = wanted[kind, name]
        got = quasi(kind, 2, 1).take(name, numbers.size, dtype, *arguments)
        return differences(got, numbers, tolerance)

    return first((found and f"{key}: {found}") for key in wanted if (found := wrong(*key)))


@case
def the_largest_point_has_a_number_too() -> str:
    last = 0x1FFFFFFFFFFFFF  # of 53 bits, and the index whose Gray code it is
    for bits in (1, 2, 4, 8, 16, 32):
        last ^= last >> bits
    double = ctypes.c_double
    got = quasi(SOBOL64, 1, last).take("curandGenerateNormalDouble", 1, np.float64, double(0), double(1))
    if not 8 < got[0] < 9:
        return f"a normal number is {got[0]}"
    got = quasi(SOBOL64, 1, last).take("curandGeneratePoisson", 1, np.uint32, double(4))
    return "" if 30 < got[0] < 50 else f"a number of Poisson's is {got[0]}"


@case
def poisson_numbers_are_quantiles() -> str:
    def one(mean: float) -> str:
        x = points(4000, 1, 1).reshape(-1) * 2.0**-32
        got = quasi(SOBOL64, 1, 1).take("curandGeneratePoisson", x.size, np.uint32, ctypes.c_double(mean))
        wrong = differences(got, stats.poisson.ppf(x + 2.0**-54, mean))
        return wrong and f"mean {mean}: {wrong}"

    return first(one(mean) for mean in (0.3, 4.0, 63.5, *(() if REAL else (20000.0,))))


@case
def scrambled_points_are_a_net() -> str:
    """Of 2¹² points of a dimension each part of 2⁻¹² has one, before and after the scramble; two dimensions are as even as before."""

    def one(kind: int, name: str, dtype: Any) -> str:
        count, dimensions, bits = 4096, 40, np.dtype(dtype).itemsize * 8
        got = quasi(kind, dimensions).take(name, count * dimensions, dtype).reshape(dimensions, count)
        cells = (got >> dtype(bits - 12)).astype(np.int64)
        if not (np.sort(cells, 1) == np.arange(count)).all():
            return "a part has no point, or two"
        plain = (points(count, dimensions) >> np.uint64(20)).astype(np.int64)
        if (cells == plain).mean() > 0.01:
            return "nothing is scrambled"

        def occupied(of: np.ndarray[Any, Any]) -> list[int]:
            return [np.unique(of[i] >> 6 << 6 | of[i + 1] >> 6).size for i in range(dimensions - 1)]

        return "" if occupied(cells) == occupied(plain) else "two dimensions are not as even as they were"

    return one(SCRAMBLED32, "curandGenerate", np.uint32) or one(
        SCRAMBLED64, "curandGenerateLongLong", np.uint64
    )


@CASES.simulated_only("NVIDIA's library has a scramble of its own, and its tables here are gpukernel's")
def scrambled_points_are_those_of_their_tables() -> str:
    def one(bits: int, kind: int, name: str, dtype: Any) -> str:
        directions = table(
            f"curandGetDirectionVectors{bits}", dtype, (DIMENSIONS, bits), 102 if bits == 32 else 104
        )
        constants = table(f"curandGetScrambleConstants{bits}", dtype, (DIMENSIONS,))
        if np.unique(constants).size < DIMENSIONS - 100:
            return "constants repeat"
        got = quasi(kind, DIMENSIONS).take(name, 4 * DIMENSIONS, dtype).reshape(DIMENSIONS, 4)
        first_two = directions[:, 0], directions[:, 1]
        wanted = [
            constants,
            constants ^ first_two[0],
            constants ^ first_two[0] ^ first_two[1],
            constants ^ first_two[1],
        ]
        return "" if np.array_equal(got, np.stack(wanted, 1)) else f"{bits} bits: other points"

    return one(32, SCRAMBLED32, "curandGenerate", np.uint32) or one(
        64, SCRAMBLED64, "curandGenerateLongLong", np.uint64
    )


@CASES.not_native
def what_is_refused() -> str:
    g, long, out, place = quasi(SOBOL32, 3), quasi(SOBOL64), Array(np.zeros(8, np.uint64)), ctypes.c_void_p()
    size = ctypes.c_size_t
    found = [
        g("curandGenerate", out.pointer, size(7)),  # no multiple of the dimensions
        g("curandGenerateLongLong", out.pointer, size(3)),
        long("curandGenerate", out.pointer, size(3)),
        g("curandSetPseudoRandomGeneratorSeed", ctypes.c_ulonglong(1)),
        g("curandSetGeneratorOrdering", 100),
        g("curandSetQuasiRandomGeneratorDimensions", ctypes.c_uint(0)),
        g("curandSetQuasiRandomGeneratorDimensions", ctypes.c_uint(DIMENSIONS + 1)),
        g.library.curandGetDirectionVectors32(ctypes.byref(place), 103),
        g.library.curandGetDirectionVectors64(ctypes.byref(place), 101),
        Generator(161)("curandSetGeneratorOrdering", 201),
        Generator(161)("curandGenerateLongLong", out.pointer, size(2)),
    ]
    return "" if found == [105, 103, 103, 103, 104, 104, 104, 104, 104, 104, 103] else f"{found}"


if __name__ == "__main__":
    CASES.main()
