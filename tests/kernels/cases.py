"""The table of kernels: each case runs one and gives what came out beside what NumPy or SciPy say.

Run as a program, ``python -m tests.kernels.cases NAME``, a case is a plain CUDA program that exits with 0 where it agrees.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.kernels.gpu import Gpu

Pairs = Iterator[tuple[Any, Any]]  # what came out, what should
I4, U4, F4 = np.int32, np.uint32, np.float32
CASES: dict[str, Case] = {}


@dataclass(frozen=True)
class Case:
    """One kernel file with its tolerances; ``architecture`` is what NVRTC compiles for."""

    run: Callable[[Gpu, np.random.Generator], Pairs]
    rtol: float
    atol: float
    architecture: str


def case(rtol: float = 0, atol: float = 0, architecture: str = "compute_70") -> Any:
    """Put a function into the table; without a tolerance the answer must be exact."""

    def add(run: Any) -> Any:
        CASES[run.__name__] = Case(run, rtol, atol, architecture)
        return run

    return add


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@case(rtol=1e-12)
def scan(gpu: Gpu, random: np.random.Generator) -> Pairs:
    for name, dtype in (("scan_int", I4), ("scan_long", np.int64), ("scan_double", np.float64)):
        for n in (1, 255, 256, 20_000):
            values = random.integers(-1000, 1000, n).astype(dtype)
            blocks = ceil_div(n, 256)
            out = gpu.zeros(n, dtype)
            state = [
                gpu.zeros(1, U4),
                gpu.zeros(blocks, I4),
                gpu.zeros(blocks, dtype),
                gpu.zeros(blocks, dtype),
            ]
            gpu.launch("scan.cu", name, blocks, 256, gpu.array(values), out, I4(n), *state)
            yield out.get(), np.cumsum(values, dtype=dtype)


@case()
def histogram(gpu: Gpu, random: np.random.Generator) -> Pairs:
    for n in (0, 3, 100_003):
        data = np.minimum(random.exponential(30, n), 255).astype(np.uint8)
        bins = gpu.zeros(256, U4)
        gpu.launch("histogram.cu", "histogram", 7, 128, gpu.array(data), bins, I4(n), shared=256 * 4 * 4)
        yield bins.get(), np.bincount(data, minlength=256)


@case()
def radix_sort(gpu: Gpu, random: np.random.Generator) -> Pairs:
    n, threads = 10_000, 256
    blocks = ceil_div(n, threads)
    for keys in (random.integers(0, 2**32, n, dtype=U4), random.integers(0, 50, n, dtype=U4)):
        front, back = [
            (gpu.array(keys), gpu.array(np.arange(n, dtype=U4))),
            (gpu.zeros(n, U4), gpu.zeros(n, U4)),
        ]
        counts = gpu.zeros(16 * blocks, U4)
        for shift in range(0, 32, 4):
            gpu.launch("radix_sort.cu", "count", blocks, threads, front[0], counts, I4(n), I4(shift))
            gpu.launch("radix_sort.cu", "exclusive_scan", 1, 256, counts, I4(16 * blocks))
            gpu.launch("radix_sort.cu", "scatter", blocks, threads, *front, *back, counts, I4(n), I4(shift))
            front, back = back, front
        order = np.argsort(keys, kind="stable")
        yield front[0].get(), keys[order]
        yield front[1].get(), order


@case(rtol=2e-5, atol=2e-5)
def nbody(gpu: Gpu, random: np.random.Generator) -> Pairs:
    n, softening = 500, 0.1
    bodies = random.random((n, 4), dtype=F4)
    out = gpu.zeros((n, 4), F4)
    gpu.launch("nbody.cu", "accelerate", ceil_div(n, 128), 128, gpu.array(bodies), out, I4(n), F4(softening))
    place, mass = bodies[:, :3].astype(np.float64), bodies[:, 3].astype(np.float64)
    apart = place[None] - place[:, None]
    distance = np.sqrt((apart**2).sum(-1) + softening**2)
    pull = (mass[None, :, None] * apart / distance[..., None] ** 3).sum(1)
    yield out.get()[:, :3] / n, pull / n


@case(rtol=1e-5, atol=2e-5)
def fft(gpu: Gpu, random: np.random.Generator) -> Pairs:
    for n, batch in ((1024, 3), (64, 5)):
        signal = (random.standard_normal((batch, n)) + 1j * random.standard_normal((batch, n))).astype(
            np.complex64
        )
        data = gpu.array(signal)
        gpu.launch("fft.cu", f"fft_{n}", batch, min(n // 2, 256), data, F4(-1))
        yield data.get() / math.sqrt(n), np.fft.fft(signal) / math.sqrt(n)
        gpu.launch("fft.cu", f"fft_{n}", batch, min(n // 2, 256), data, F4(1))
        yield data.get() / n, signal


@case(rtol=1e-6, atol=1e-6)
def stencil(gpu: Gpu, random: np.random.Generator) -> Pairs:
    height, width, rate = 61, 83, F4(0.2)
    want = random.random((height, width), dtype=F4)
    front, back = gpu.array(want), gpu.zeros(want.shape, F4)
    for _ in range(5):
        grid = (ceil_div(width, 16), ceil_div(height, 16))
        gpu.launch("stencil.cu", "heat_2d", grid, (16, 16), front, back, I4(width), I4(height), rate)
        front, back = back, front
        around = want[:-2, 1:-1] + want[2:, 1:-1] + want[1:-1, :-2] + want[1:-1, 2:]
        want = want.copy()
        want[1:-1, 1:-1] += rate * (around - 4 * want[1:-1, 1:-1])
    yield front.get(), want
    box = random.random((9, 17, 40))
    out = gpu.zeros(box.shape, np.float64)
    nz, ny, nx = box.shape
    gpu.launch("stencil.cu", "laplace_3d", (2, 4), (32, 4), gpu.array(box), out, I4(nx), I4(ny), I4(nz))
    inner = (slice(1, -1),) * 3
    laplace = -6 * box[inner]
    for axis in range(3):
        laplace += (np.roll(box, 1, axis) + np.roll(box, -1, axis))[inner]
    yield out.get()[inner], laplace


@case(rtol=1e-12)
def spmv(gpu: Gpu, random: np.random.Generator) -> Pairs:
    from scipy import sparse

    rows, columns = 700, 500
    matrix = sparse.random(rows, columns, 0.05, "csr", random_state=random)
    x = random.standard_normal(columns)
    parts = [gpu.array(a) for a in (matrix.indptr.astype(I4), matrix.indices.astype(I4), matrix.data, x)]
    for name, threads in (("by_thread", rows), ("by_warp", 32 * rows)):
        y = gpu.zeros(rows, np.float64)
        gpu.launch("spmv.cu", name, ceil_div(threads, 128), 128, *parts, y, I4(rows))
        yield y.get(), matrix @ x


def philox(counter: Any, key: Any) -> Any:
    """Philox 4x32-10 of counters (n, 4), by NumPy."""
    c, k = counter.astype(np.uint64), [int(v) for v in key]
    for _ in range(10):
        first, second = 0xD2511F53 * c[:, 0], 0xCD9E8D57 * c[:, 2]
        low = np.uint64(0xFFFFFFFF)
        c = np.stack(
            [(second >> 32) ^ c[:, 1] ^ k[0], second & low, (first >> 32) ^ c[:, 3] ^ k[1], first & low],
            axis=1,
        )
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c.astype(U4)


@case(rtol=5e-5)
def monte_carlo(gpu: Gpu, random: np.random.Generator) -> Pairs:
    from scipy.stats import norm

    # Known answers of the generator, from the test vectors that its authors publish with Random123.
    known = {
        (0, 0, 0, 0, 0, 0): (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        (0xFFFFFFFF,) * 6: (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    }
    for counter_and_key, answer in known.items():
        out = gpu.zeros((32, 4), U4)
        counter, key = U4(counter_and_key[:4]), U4(counter_and_key[4:])
        gpu.launch("monte_carlo.cu", "random_bits", 1, 32, out, counter, key)
        yield out.get()[0], U4(answer)
    key, n, rounds = U4([7, 11]), 64 * 128, 16
    counters = np.stack([np.arange(n), np.full(n, 9), np.full(n, 8), np.full(n, 7)], axis=1)
    out = gpu.zeros((n, 4), U4)
    gpu.launch("monte_carlo.cu", "random_bits", 64, 128, out, U4([0, 9, 8, 7]), key)
    yield out.get(), philox(counters, key)

    inside = gpu.zeros(1, np.uint64)
    gpu.launch("monte_carlo.cu", "points_in_circle", 64, 128, inside, I4(rounds), key)
    bits = np.concatenate(
        [
            philox(np.stack([np.arange(n), np.full(n, r), *[np.zeros(n, int)] * 2], 1), key)
            for r in range(rounds)
        ]
    )
    uniform = (bits >> 8) * F4(2**-24) + F4(2**-25)
    count = (uniform[:, 0] ** 2 + uniform[:, 1] ** 2 < 1).sum() + (
        uniform[:, 2] ** 2 + uniform[:, 3] ** 2 < 1
    ).sum()
    yield inside.get()[0], count
    yield np.float64(abs(4 * count / (2 * n * rounds) - np.pi) < 0.02), 1.0

    spot, strike, rate, volatility, years = 100.0, 105.0, 0.03, 0.2, 1.5
    total = gpu.zeros(1, np.float64)
    terms = [F4(v) for v in (spot, strike, rate, volatility, years)]
    gpu.launch("monte_carlo.cu", "european_call", 64, 128, total, I4(rounds), *terms, key)
    bits = np.concatenate(
        [
            philox(np.stack([np.arange(n), np.full(n, r), np.ones(n, int), np.zeros(n, int)], 1), key)
            for r in range(rounds)
        ]
    )
    uniform = ((bits >> 8) * F4(2**-24) + F4(2**-25)).astype(np.float64)
    radius, angle = np.sqrt(-2 * np.log(uniform[:, 0])), 2 * np.pi * uniform[:, 1]
    drift, width = (rate - volatility**2 / 2) * years, volatility * math.sqrt(years)
    same_draws = sum(
        np.maximum(spot * np.exp(drift + width * radius * f(angle)) - strike, 0).sum()
        for f in (np.cos, np.sin)
    )
    yield total.get()[0], same_draws
    d1 = (math.log(spot / strike) + (rate + volatility**2 / 2) * years) / width
    price = spot * norm.cdf(d1) - strike * math.exp(-rate * years) * norm.cdf(d1 - width)
    estimate = math.exp(-rate * years) * total.get()[0] / (2 * n * rounds)
    yield np.float64(abs(estimate / price - 1) < 0.01), 1.0


@case(rtol=2e-6, atol=1e-7)
def softmax(gpu: Gpu, random: np.random.Generator) -> Pairs:
    for rows, columns in ((37, 100), (5, 7), (2, 1000)):
        values = (10 * random.standard_normal((rows, columns))).astype(F4)
        out = gpu.zeros(values.shape, F4)
        gpu.launch(
            "softmax.cu", "softmax", ceil_div(rows, 4), 128, gpu.array(values), out, I4(rows), I4(columns)
        )
        raised = np.exp(values.astype(np.float64) - values.max(1, keepdims=True))
        yield out.get(), raised / raised.sum(1, keepdims=True)


@case(rtol=1e-3, atol=1e-5)
def gemm(gpu: Gpu, random: np.random.Generator) -> Pairs:
    batch, m, n, k = 3, 40, 50, 70
    for name, dtype in (("gemm_float", F4), ("gemm_double", np.float64), ("gemm_half", np.float16)):
        a, b = random.random((batch, m, k)).astype(dtype), random.random((batch, k, n)).astype(dtype)
        out = gpu.zeros((batch, m, n), dtype)
        grid = (ceil_div(n, 16), ceil_div(m, 16), batch)
        gpu.launch("gemm.cu", name, grid, (16, 16), gpu.array(a), gpu.array(b), out, I4(m), I4(n), I4(k))
        yield out.get().astype(np.float64), a.astype(np.float64) @ b.astype(np.float64)
    a, b = random.standard_normal((2, 1000)).astype(np.float16)
    out = gpu.zeros(1000, np.float16)
    gpu.launch("gemm.cu", "axpy_half2", 4, 128, gpu.array(a), gpu.array(b), out, F4(1.5), I4(500))
    yield out.get(), (1.5 * a.astype(np.float64) + b).astype(np.float16)


@case(rtol=1e-12)
def cooperative(gpu: Gpu, random: np.random.Generator) -> Pairs:
    values = random.integers(-100, 100, 512).astype(I4)
    for size in (32, 8):
        out = gpu.zeros(512 // size, I4)
        gpu.launch("cooperative.cu", f"tiles_of_{size}", 4, 128, gpu.array(values), out)
        yield out.get(), values.reshape(-1, size).sum(1)
    out = gpu.zeros(512, I4)
    gpu.launch("cooperative.cu", "tile_scan", 4, 128, gpu.array(values), out)
    yield out.get(), np.cumsum(values.reshape(-1, 16), 1).ravel()
    count = gpu.zeros(1, I4)
    gpu.launch("cooperative.cu", "count_odd", 4, 128, gpu.array(values), count, I4(500))
    yield count.get()[0], (values[:500] & 1).sum()
    numbers = random.random(3000)
    out, sums = gpu.zeros(3000, np.float64), gpu.zeros(6, np.float64)
    gpu.launch(
        "cooperative.cu", "normalise", 6, 128, gpu.array(numbers), out, sums, I4(3000), cooperative=True
    )
    yield out.get(), numbers / numbers.sum()


@case(architecture="compute_90")
def clusters(gpu: Gpu, random: np.random.Generator) -> Pairs:
    for cluster in ((2, 3, 1), (1, 1, 2), (4, 1, 2), (1, 1, 1), None):
        grid = (4, 3, 2)
        out = gpu.zeros((2, 3, 4, 16), I4)
        gpu.launch("clusters.cu", "places", grid, 32, out, cluster=cluster)
        x, y, z = cluster or (1, 1, 1)
        block = np.moveaxis(np.indices((2, 3, 4))[::-1], 0, -1)
        within, of = block % (x, y, z), block // (x, y, z)
        rank = within @ [1, x, x * y]
        size = np.broadcast_to
        yield (
            out.get(),
            np.concatenate(
                [
                    within,
                    rank[..., None],
                    size((x, y, z, x * y * z), (2, 3, 4, 4)),
                    of,
                    size((4 // x, 3 // y, 2 // z, cluster is not None, 32 * x * y * z), (2, 3, 4, 5)),
                ],
                -1,
            ),
        )
    data = random.integers(0, 96, 5000).astype(I4)
    for size_, per_block in ((2, 48), (8, 12), (1, 96)):
        bins = gpu.zeros(96, I4)
        gpu.launch(
            "clusters.cu",
            "histogram",
            16,
            64,
            gpu.array(data),
            I4(5000),
            bins,
            I4(per_block),
            shared=4 * per_block,
            cluster=(size_, 1, 1),
        )
        yield bins.get(), np.bincount(data, minlength=96)
    rows = random.integers(-9, 9, (3, 256)).astype(I4)
    for rounds in (0, 1, 7):
        out, want = gpu.zeros(rows.shape, I4), rows
        gpu.launch("clusters.cu", "smooth", 12, 64, gpu.array(rows), out, I4(rounds))
        for _ in range(rounds):
            want = want + np.roll(want, 1, 1) + np.roll(want, -1, 1)
        yield out.get(), want
    boxes = random.integers(-99, 99, (5, 2, 32, 4)).astype(I4)
    out = gpu.zeros(boxes.size + 10, I4)
    gpu.launch("clusters.cu", "pass_on", 10, 32, gpu.array(boxes), out)
    yield out.get()[:-10].reshape(boxes.shape), boxes[:, ::-1]
    yield out.get()[-10:].reshape(5, 2), boxes[:, ::-1, :, 0].sum(-1)
    out = gpu.zeros(1 + 8, I4)
    gpu.launch("clusters.cu", "both_barriers", 8, 64, out, cooperative=True)
    yield out.get(), 2 * (1 * 2 + 3 * 4 + 5 * 6 + 7 * 8)


@case(rtol=1e-5, architecture="compute_90")
def bulk(gpu: Gpu, random: np.random.Generator) -> Pairs:
    for columns in (4, 100, 256):
        rows = random.integers(-99, 99, (5, columns)).astype(I4)
        out = gpu.zeros(rows.shape, I4)
        gpu.launch("bulk.cu", "reverse_rows", 5, 32, gpu.array(rows), out, I4(columns), shared=4 * columns)
        yield out.get(), rows[:, ::-1]
    tiles = random.random((6, 128), dtype=F4)
    sums, seen = gpu.zeros(128, F4), gpu.zeros(1, I4)
    gpu.launch("bulk.cu", "spread", 24, 128, gpu.array(tiles), sums, seen)
    yield sums.get(), tiles.astype(np.float64).sum(0) * (1 + 2 + 3 + 4)
    yield seen.get()[0], 24


@case(architecture="compute_90a")
def hopper(gpu: Gpu, random: np.random.Generator) -> Pairs:
    for m, n, k in ((64, 64, 64), (200, 136, 328), (8, 8, 72)):
        a, b = (random.integers(-3, 4, shape).astype(np.float16) for shape in ((m, k), (k, n)))
        given, out = [gpu.array(a), gpu.array(b)], gpu.zeros((m, n), np.float16)
        maps = [gpu.tensor_map(each, (64, 64), swizzle=128) for each in given] + [
            gpu.tensor_map(out, (64, 64))
        ]
        grid = (ceil_div(n, 64), ceil_div(m, 64))
        gpu.launch("hopper.cu", "gemm", grid, 256, *maps, I4(k), shared=5 * 64 * 128)
        yield out.get(), a.astype(F4) @ b.astype(F4)


@case(rtol=1e-12)
def block_algorithms(gpu: Gpu, random: np.random.Generator) -> Pairs:
    keys = random.integers(-(2**31), 2**31, 3 * 512).astype(I4)
    out = gpu.zeros(keys.shape, I4)
    gpu.launch("block_algorithms.cu", "sort_block", 3, 128, gpu.array(keys), out)
    yield out.get().reshape(3, 512), np.sort(keys.reshape(3, 512), 1)
    values = random.random(4 * 128)
    sums, prefix = gpu.zeros(4, np.float64), gpu.zeros(values.shape, np.float64)
    gpu.launch("block_algorithms.cu", "reduce_and_scan", 4, 128, gpu.array(values), sums, prefix)
    rows = values.reshape(4, 128)
    yield sums.get(), rows.sum(1)
    yield prefix.get().reshape(4, 128), np.cumsum(rows, 1) - rows


def products(
    gpu: Gpu, random: np.random.Generator, name: str, given: Any, wanted: Any, columns: bool, tile: int
) -> Pairs:
    """A kernel of ``wmma.cu`` on whole numbers, whose sums every type holds exactly."""
    m, n, k = 64, 96, 48
    low, high = (0, 256) if given == np.uint8 else (-8, 9)
    a, b = random.integers(low, high, (m, k)), random.integers(low, high, (k, n))
    order = "F" if columns else "C"
    there = [gpu.array(coded(np.asarray(v.ravel(order)), given)) for v in (a, b)]
    out = gpu.zeros((m, n), wanted)
    gpu.launch("wmma.cu", name, ceil_div(m * n // tile, 2), 64, *there, out, I4(m), I4(n), I4(k))
    yield out.get().astype(np.float64), (a @ b).astype(np.float64)


def coded(values: Any, dtype: Any) -> Any:
    """Numbers as the kernel's type; "bf16" is the upper half of a float."""
    if dtype == "bf16":
        return (values.astype(F4).view(U4) >> 16).astype(np.uint16)
    return values.astype(dtype)


@case()
def wmma(gpu: Gpu, random: np.random.Generator) -> Pairs:
    for name in ("half_rows", "half_columns", "half_high", "half_wide"):
        yield from products(gpu, random, name, np.float16, F4, "columns" in name or name == "half_high", 256)
    yield from products(gpu, random, "half_sums", np.float16, np.float16, False, 256)
    m, n, k = 128, 64, 96
    a, b = random.integers(-8, 9, (m, k)), random.integers(-8, 9, (k, n))
    out = gpu.zeros((m, n), F4)
    there = [gpu.array(v.astype(np.float16)) for v in (a, b)]
    gpu.launch("wmma.cu", "half_staged", (n // 64, m // 64), 128, *there, out, I4(m), I4(n), I4(k), F4(0.5))
    yield out.get(), np.maximum(a @ b / 2, 0)


@case(architecture="compute_80")
def wmma_of_other_types(gpu: Gpu, random: np.random.Generator) -> Pairs:
    yield from products(gpu, random, "brain_rows", "bf16", F4, False, 256)
    yield from products(gpu, random, "brain_high", "bf16", F4, False, 256)
    yield from products(gpu, random, "brain_wide", "bf16", F4, True, 256)
    yield from products(gpu, random, "signed_bytes", np.int8, I4, False, 256)
    yield from products(gpu, random, "signed_columns", np.int8, I4, True, 256)
    yield from products(gpu, random, "unsigned_bytes", np.uint8, I4, False, 256)
    yield from products(gpu, random, "tf32_rows", F4, F4, False, 256)
    yield from products(gpu, random, "tf32_columns", F4, F4, True, 256)
    yield from products(gpu, random, "double_rows", np.float64, np.float64, False, 64)
    yield from products(gpu, random, "double_columns", np.float64, np.float64, True, 64)


# Half-precision products are exact in single precision; sums of 160 of them in another order, or cut off as a GPU's, differ a little.
@case(rtol=1e-5, atol=2e-4, architecture="compute_80")
def mma_with_asynchronous_copies(gpu: Gpu, random: np.random.Generator) -> Pairs:
    for m, n, k in ((64, 64, 160), (50, 72, 32)):
        a, b = (
            random.standard_normal((m, k)).astype(np.float16),
            random.standard_normal((k, n)).astype(np.float16),
        )
        out = gpu.zeros((m, n), F4)
        grid = (ceil_div(n, 32), ceil_div(m, 32))
        gpu.launch(
            "wmma.cu", "half_pipelined", grid, 128, gpu.array(a), gpu.array(b), out, I4(m), I4(n), I4(k)
        )
        yield out.get(), a.astype(np.float64) @ b.astype(np.float64)


def pipeline(gpu: Gpu, random: np.random.Generator) -> Pairs:
    rows, quads = 5, 150
    values = random.random((rows, 4 * quads), dtype=F4)
    out = gpu.zeros(rows, F4)
    gpu.launch("pipeline.cu", "row_sums", rows, 64, gpu.array(values), out, I4(rows), I4(quads))
    yield out.get(), values.astype(np.float64).sum(1)
    boxes = random.integers(-99, 99, (7, 64)).astype(I4)
    out = gpu.zeros(64, I4)
    gpu.launch("pipeline.cu", "produce_and_consume", 1, 128, gpu.array(boxes), out, I4(7))
    yield out.get(), boxes.sum(0)[::-1]


# The same source becomes mbarrier.test_wait for Ampere and mbarrier.try_wait for Hopper.
CASES["pipeline on an A100"] = Case(pipeline, 1e-5, 0, "compute_80")
CASES["pipeline on an H100"] = Case(pipeline, 1e-5, 0, "compute_90")


def main(name: str) -> None:
    chosen = CASES[name]
    gpu, random = Gpu(chosen.architecture), np.random.default_rng(2)
    compared = 0
    for got, want in chosen.run(gpu, random):
        np.testing.assert_allclose(got, want, rtol=chosen.rtol, atol=chosen.atol)
        compared += 1
    print(f"{name}: {compared} comparisons agree")


if __name__ == "__main__":
    main(sys.argv[1])
