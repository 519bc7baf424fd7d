"""Cases of cuRAND: published algorithms number by number, distributions by their moments and by SciPy's tests."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
from cuda.bindings import driver
from scipy import stats

from tests.native.libraries.cublas_cases import first
from tests.native.libraries.device import Array, Cases, ok
from tests.real_gpu import REAL

__all__ = ["CASES"]

CASES = Cases()
case = CASES.add
XORWOW, MRG, MT, PHILOX = 101, 121, 142, 161
KINDS = (XORWOW, MRG, MT, PHILOX)
COUNT = 200_000


class Generator:
    """A generator by its type; its functions take it by themselves."""

    def __init__(self, kind: int, seed: int | None = None) -> None:
        self.library = ctypes.CDLL("libcurand.so.10")
        self.handle = ctypes.c_void_p()
        assert self.library.curandCreateGenerator(ctypes.byref(self.handle), kind) == 0
        if seed is not None:
            self.done("curandSetPseudoRandomGeneratorSeed", ctypes.c_ulonglong(seed))

    def __call__(self, name: str, *arguments: Any) -> int:
        """Call a function, and return its status."""
        return int(getattr(self.library, name)(self.handle, *arguments))

    def done(self, name: str, *arguments: Any) -> None:
        """Call a function, and fail where its status is not 0."""
        status = self(name, *arguments)
        assert status == 0, f"{name}: {status}"

    def take(self, name: str, count: int, kind: Any, *arguments: Any) -> np.ndarray[Any, Any]:
        """Return `count` numbers of a function."""
        out = Array(np.zeros(count, kind))
        self.done(name, out.pointer, ctypes.c_size_t(count), *arguments)
        return out.get()


def philox(positions: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    """The numbers at positions, by the published algorithm (Salmon and others, SC 2011).

    Fours of them are those of 65,536 sequences in turn.  A sequence is the high half of the counter.
    """
    low, block = np.uint64(0xFFFFFFFF), positions.astype(np.uint64) // np.uint64(4)
    sequence, place = block % np.uint64(65536), block // np.uint64(65536)
    x = [place & low, place >> np.uint64(32), sequence, np.zeros_like(sequence)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * x[0], np.uint64(0xCD9E8D57) * x[2]
        high_a, high_b = a >> np.uint64(32), b >> np.uint64(32)
        x = [high_b ^ x[1] ^ np.uint64(key[0]), b & low, high_a ^ x[3] ^ np.uint64(key[1]), a & low]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.choose(positions % 4, x)


def differences(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], tolerance: float = 0) -> str:
    """Return where numbers differ, the first few of these places."""
    wrong = np.flatnonzero(~np.isclose(got, wanted, rtol=0, atol=tolerance))
    first_of = ", ".join(f"{i}: {got[i]}, not {wanted[i]}" for i in wrong[:3])
    return f"{wrong.size} of {got.size} differ, {first_of}" if wrong.size else ""


@case
def philox_is_the_published_one() -> str:
    generator = Generator(PHILOX, 0)
    known = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # of Random123's own known answers
    if list(generator.take("curandGenerate", 4, np.uint32)) != known:
        return "the known answers"
    seed, offset = 0x0123456789ABCDEF, 2**34 + 3
    generator.done("curandSetPseudoRandomGeneratorSeed", ctypes.c_ulonglong(seed))
    generator.done("curandSetGeneratorOffset", ctypes.c_ulonglong(offset))
    got = np.r_[
        generator.take("curandGenerate", 50001, np.uint32), generator.take("curandGenerate", 9, np.uint32)
    ]
    if wrong := differences(got, philox(offset + np.arange(50010), seed)):
        return wrong
    got = Generator(PHILOX, seed).take("curandGenerate", 600_000, np.uint32)  # each sequence twice
    return differences(got, philox(np.arange(600_000), seed))


@case
def uniform_numbers_of_philox_are_its_bits() -> str:
    seed, n = 77, 400_000
    bits = philox(np.arange(2 * n), seed)
    single = Generator(PHILOX, seed).take("curandGenerateUniform", n, np.float32)
    if wrong := differences(single, bits[:n] * 2.0**-32 + 2.0**-33, 2.0**-24):
        return f"float: {wrong}"
    double = Generator(PHILOX, seed).take("curandGenerateUniformDouble", n, np.float64)
    together = (bits[1::2] << np.uint64(21)) ^ bits[::2]
    wrong = differences(double, together * 2.0**-53 + 2.0**-54)
    return wrong and f"double: {wrong}"


@case
def normal_numbers_of_philox_are_its_bits_by_box_and_muller() -> str:
    seed, n = 78, 300_000
    bits = philox(np.arange(n), seed) * 2.0**-32 + 2.0**-33
    length, angle = np.sqrt(-2 * np.log(bits[::2])), 2 * np.pi * bits[1::2]
    wanted = np.stack([length * np.sin(angle), length * np.cos(angle)], 1).reshape(-1)
    one, two = ctypes.c_float(1), ctypes.c_float(2)
    got = Generator(PHILOX, seed).take("curandGenerateNormal", n, np.float32, one, two)
    return differences(got, 1 + 2 * wanted, 1e-4)


@case
def mrg32k3a_is_the_published_one() -> str:
    def numbers(count: int) -> list[int]:
        a, b, found = [12345] * 3, [12345] * 3, []
        for _ in range(count):
            a = [*a[1:], (1403580 * a[1] - 810728 * a[0]) % 4294967087]
            b = [*b[1:], (527612 * b[2] - 1370589 * b[0]) % 4294944443]
            found.append((a[2] - b[2]) % 4294967087 or 4294967087)
        return found

    whole = numbers(40000)
    if abs(whole[0] / 4294967088 - 0.127011122046577) > 1e-12:  # L'Ecuyer's own example
        return f"begins with {whole[0]}"
    wanted = (np.array(whole) * 1.000000048662).astype(np.uint32)  # to all of 32 bits
    generator = Generator(MRG, 0)
    got = generator.take("curandGenerate", 400_000, np.uint32)
    if REAL:  # NVIDIA's has many sequences in turn, as many as it likes
        step = int(np.flatnonzero(got == wanted[1])[0])
        count = (got.size - 1) // step + 1
        return differences(got[::step], wanted[:count])
    generator.done("curandSetGeneratorOffset", ctypes.c_ulonglong(12345))
    later = generator.take("curandGenerate", 5, np.uint32)
    return differences(got[:40000], wanted) or differences(later, wanted[12345:12350])


@case
def a_seed_repeats_and_an_offset_skips() -> str:
    def one(kind: int) -> str:
        whole = Generator(kind, 99).take("curandGenerate", 150_000, np.uint32)
        parts = Generator(kind, 99)
        pieces = np.concatenate([parts.take("curandGenerate", n, np.uint32) for n in (70_001, 3, 79_996)])
        if not np.array_equal(whole, pieces):
            return "in parts"
        parts.done("curandSetPseudoRandomGeneratorSeed", ctypes.c_ulonglong(99))
        if kind != MT:
            parts.done("curandSetGeneratorOffset", ctypes.c_ulonglong(100_000))
            if not np.array_equal(parts.take("curandGenerate", 1000, np.uint32), whole[100_000:101_000]):
                return "with an offset"
        elif parts("curandSetGeneratorOffset", ctypes.c_ulonglong(1)) != 103:
            return "an offset of MT19937"
        other = Generator(kind, 100).take("curandGenerate", 150_000, np.uint32)
        return "" if np.count_nonzero(other == whole) < 5 else "another seed, the same numbers"

    return first((wrong and f"{kind}: {wrong}") for kind in KINDS if (wrong := one(kind)))


@case
def distributions() -> str:
    double, single = ctypes.c_double, ctypes.c_float
    given: dict[str, tuple[Any, tuple[Any, ...], Any]] = {
        "curandGenerateUniform": (np.float32, (), stats.uniform()),
        "curandGenerateUniformDouble": (np.float64, (), stats.uniform()),
        "curandGenerateNormal": (np.float32, (single(2), single(3)), stats.norm(2, 3)),
        "curandGenerateNormalDouble": (np.float64, (double(-1), double(0.5)), stats.norm(-1, 0.5)),
        "curandGenerateLogNormal": (
            np.float32,
            (single(0.5), single(0.25)),
            stats.lognorm(0.25, scale=np.exp(0.5)),
        ),
        "curandGenerateLogNormalDouble": (np.float64, (double(0), double(1)), stats.lognorm(1)),
    }

    def one(kind: int, name: str) -> str:
        dtype, arguments, law = given[name]
        got = Generator(kind, 4242).take(name, COUNT, dtype, *arguments).astype(np.float64)
        if not np.isfinite(got).all() or ("Uniform" in name and not ((got > 0) & (got <= 1)).all()):
            return "out of its bounds"
        p = stats.kstest(got, law.cdf).pvalue
        beside = abs(np.corrcoef(got[:-1], got[1:])[0, 1])
        return "" if p > 1e-4 and beside < 0.01 else f"p {p:.2g}, correlation {beside:.2g}"

    return first(
        (wrong and f"{kind} {name}: {wrong}")
        for kind, name in itertools.product(KINDS, given)
        if (wrong := one(kind, name))
    )


@case
def bits_are_even() -> str:
    def one(kind: int) -> str:
        got = Generator(kind, 31).take("curandGenerate", COUNT, np.uint32)
        bits = np.unpackbits(got.view(np.uint8)).reshape(COUNT, 32)
        worst = float(np.abs(bits.mean(0) - 0.5).max())
        p = stats.chisquare(np.bincount(got >> 24, minlength=256)).pvalue
        return "" if worst < 0.006 and p > 1e-4 and len(np.unique(got)) > COUNT - 50 else f"{worst} {p}"

    return first((wrong and f"{kind}: {wrong}") for kind in KINDS if (wrong := one(kind)))


@case
def poisson_numbers() -> str:
    def one(mean: float) -> str:
        got = Generator(XORWOW, 5).take("curandGeneratePoisson", COUNT, np.uint32, ctypes.c_double(mean))
        law = stats.poisson(mean)
        low, high = int(law.ppf(0.005)), int(law.ppf(0.995))
        edges = np.unique(np.linspace(low, high, 30).astype(int))
        seen = np.histogram(got, [-np.inf, *(edges + 0.5), np.inf])[0]
        wanted = np.diff([0, *law.cdf(edges), 1]) * COUNT
        p = stats.chisquare(seen, wanted).pvalue
        return "" if p > 1e-4 else f"mean {mean}: p {p:.2g}, {got.mean()}"

    return first(one(mean) for mean in (0.3, 4.0, 9.9, 10.0, 63.5, 2000.0))


@CASES.not_native
def what_is_refused() -> str:
    g, out, other = Generator(PHILOX), Array(np.zeros(8, np.float32)), ctypes.c_void_p()
    one = ctypes.c_float(1)
    found = [
        g("curandGenerateNormal", out.pointer, ctypes.c_size_t(3), one, one),  # an odd number of them
        g("curandGenerateUniform", None, ctypes.c_size_t(3)),
        g("curandGeneratePoisson", out.pointer, ctypes.c_size_t(8), ctypes.c_double(-1)),
        g("curandSetGeneratorOrdering", 7),
        g("curandSetQuasiRandomGeneratorDimensions", 3),
        int(g.library.curandCreateGenerator(ctypes.byref(other), 141)),
        int(g.library.curandCreateGenerator(ctypes.byref(other), 7)),
        int(g.library.curandGenerateUniform(ctypes.c_void_p(4096), out.pointer, ctypes.c_size_t(8))),
        g("curandDestroyGenerator"),
        g("curandDestroyGenerator"),
    ]
    return "" if found == [105, 104, 104, 104, 103, 204, 103, 101, 0, 101] else f"{found}"


@case
def a_stream_keeps_its_order() -> str:
    stream = ok(driver.cuStreamCreate(1))
    g, out = Generator(PHILOX, 8), Array(np.zeros(1000, np.float32))
    g.done("curandSetStream", ctypes.c_void_p(int(stream)))
    for _ in range(5):
        g.done("curandGenerateUniform", out.pointer, ctypes.c_size_t(1000))
    ok(driver.cuStreamSynchronize(stream))
    wanted = Generator(PHILOX, 8).take("curandGenerateUniform", 5000, np.float32)[4000:]
    return "" if np.array_equal(out.get(), wanted) else "another order"


if __name__ == "__main__":
    CASES.main()
