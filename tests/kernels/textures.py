"""The table of texture and surface kernels; ``python -m tests.kernels.textures NAME`` runs one as a plain CUDA program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from cuda.bindings import driver

from tests.kernels import texture_reference as reference
from tests.kernels.gpu import Gpu, ok

FILE = "textures.cu"
I4, U4, F4 = np.int32, np.uint32, np.float32
Pairs = Iterator[tuple[Any, Any]]
CASES: dict[str, Callable[[Gpu, np.random.Generator], Pairs]] = {}

LAYERED, SURFACE, CUBEMAP, GATHER = 1, 2, 4, 8  # CUDA_ARRAY3D_…
READ_AS_INTEGER, NORMALIZED, SRGB, SEAMLESS = 1, 2, 0x10, 0x40  # CU_TRSF_…
FORMATS = {
    np.dtype(np.uint8): driver.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8,
    np.dtype(np.uint16): driver.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT16,
    np.dtype(np.uint32): driver.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT32,
    np.dtype(np.int8): driver.CUarray_format.CU_AD_FORMAT_SIGNED_INT8,
    np.dtype(np.int16): driver.CUarray_format.CU_AD_FORMAT_SIGNED_INT16,
    np.dtype(np.int32): driver.CUarray_format.CU_AD_FORMAT_SIGNED_INT32,
    np.dtype(np.float16): driver.CUarray_format.CU_AD_FORMAT_HALF,
    np.dtype(np.float32): driver.CUarray_format.CU_AD_FORMAT_FLOAT,
}
MODES = {name: n for n, name in enumerate(("wrap", "clamp", "mirror", "border"))}


def case(run: Any) -> Any:
    CASES[run.__name__] = run
    return run


def describe(values: Any, dimensions: int, flags: int) -> Any:
    """The descriptor of an array for `values`, of shape (layers, …, y, x, channel)."""
    shape = driver.CUDA_ARRAY3D_DESCRIPTOR()
    sizes = values.shape[-2::-1]
    shape.Width = sizes[0]
    shape.Height = sizes[1] if dimensions > 1 else 0
    shape.Depth = sizes[dimensions] if flags & (LAYERED | CUBEMAP) else sizes[2] if dimensions > 2 else 0
    shape.Format, shape.NumChannels, shape.Flags = FORMATS[values.dtype], values.shape[-1], flags
    return shape


def copy(values: Any, array: Any, *, back: bool = False) -> None:
    """All of `values` into an array, or back."""
    box = driver.CUDA_MEMCPY3D()
    box.WidthInBytes = values.shape[-2] * values.shape[-1] * values.itemsize
    box.Height = values.shape[-3] if values.ndim > 2 else 1
    box.Depth = values.shape[-4] if values.ndim > 3 else 1
    if values.ndim == 3 and ok(driver.cuArray3DGetDescriptor(array)).Height == 0:  # layers of one dimension
        box.Height, box.Depth = 1, values.shape[0]
    host, there = ("dst", "src") if back else ("src", "dst")
    setattr(box, f"{host}MemoryType", driver.CUmemorytype.CU_MEMORYTYPE_HOST)
    setattr(box, f"{host}Host", values.ctypes.data)
    setattr(box, f"{host}Pitch", box.WidthInBytes)
    setattr(box, f"{host}Height", box.Height)
    setattr(box, f"{there}MemoryType", driver.CUmemorytype.CU_MEMORYTYPE_ARRAY)
    setattr(box, f"{there}Array", array)
    ok(driver.cuMemcpy3D(box))


def array_of(values: Any, dimensions: int, flags: int = 0) -> Any:
    array = ok(driver.cuArray3DCreate(describe(values, dimensions, flags)))
    copy(np.ascontiguousarray(values), array)
    return array


def values_of(array: Any, like: Any) -> Any:
    values = np.zeros_like(like)
    copy(values, array, back=True)
    return values


def resource_of(array: Any) -> Any:
    resource = driver.CUDA_RESOURCE_DESC()
    if isinstance(array, driver.CUmipmappedArray):
        resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
        resource.res.mipmap.hMipmappedArray = array
    else:
        resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_ARRAY
        resource.res.array.hArray = array
    return resource


def linear_resource(address: int, values: Any) -> Any:
    resource = driver.CUDA_RESOURCE_DESC()
    resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_LINEAR
    linear = resource.res.linear
    linear.devPtr, linear.sizeInBytes = address, values.nbytes
    linear.format, linear.numChannels = FORMATS[values.dtype], values.shape[-1]
    return resource


def pitched_resource(address: int, values: Any, pitch: int) -> Any:
    resource = driver.CUDA_RESOURCE_DESC()
    resource.resType = driver.CUresourcetype.CU_RESOURCE_TYPE_PITCH2D
    rows = resource.res.pitch2D
    rows.devPtr, rows.height, rows.width = address, values.shape[0], values.shape[1]
    rows.pitchInBytes = pitch
    rows.format, rows.numChannels = FORMATS[values.dtype], values.shape[-1]
    return resource


def texture(
    resource: Any,
    modes: Any = ("clamp",) * 3,
    *,
    linear: bool = False,
    flags: int = 0,
    border: Any = (0.0,) * 4,
    levels: Any = None,
    view: Any = None,
) -> np.uint64:
    """A texture object; `levels` is (filter linearly, bias, least, most)."""
    sampler = driver.CUDA_TEXTURE_DESC()
    filters = driver.CUfilter_mode.CU_TR_FILTER_MODE_POINT, driver.CUfilter_mode.CU_TR_FILTER_MODE_LINEAR
    sampler.addressMode = [driver.CUaddress_mode(MODES[m]) for m in modes]
    sampler.filterMode, sampler.flags, sampler.borderColor = filters[linear], flags, list(border)
    if levels:
        sampler.mipmapFilterMode, sampler.mipmapLevelBias = filters[levels[0]], levels[1]
        sampler.minMipmapLevelClamp, sampler.maxMipmapLevelClamp = levels[2:]
    return np.uint64(int(ok(driver.cuTexObjectCreate(resource, sampler, view))))


def surface(array: Any) -> np.uint64:
    return np.uint64(int(ok(driver.cuSurfObjectCreate(resource_of(array)))))


class Fetches:
    """Threads with random coordinates, in and around a texture."""

    def __init__(
        self, gpu: Gpu, random: np.random.Generator, sizes: Any, *, normalized: bool = False
    ) -> None:
        self.gpu, self.n = gpu, 1000
        sizes = (*sizes, *(1,) * (3 - len(sizes)))
        spread = [1.0 if normalized else float(n) for n in sizes]
        self.at = [(random.uniform(-1.5, 2.5, self.n) * s).astype(F4) for s in spread]
        self.at[0][:3] = 0, spread[0], spread[0] / 2
        self.layer = random.integers(-2, 9, self.n).astype(I4)

    def run(self, kernel: str, object_: np.uint64, dtype: Any = F4, *more: np.uint64) -> Any:
        out = self.gpu.zeros((self.n, 4), dtype)
        arguments = [self.gpu.array(c) for c in (*self.at, self.layer)]
        self.gpu.launch(FILE, kernel, -(-self.n // 128), 128, object_, *more, *arguments, out, I4(self.n))
        return out.get()


# --- textures ---


@case
def every_filter_and_addressing_mode(gpu: Gpu, random: np.random.Generator) -> Pairs:
    border = (0.25, 0.5, -1.0, 2.0)
    for dimensions, sizes in ((1, (13,)), (2, (13, 6)), (3, (5, 4, 7))):
        texels = random.uniform(-1, 1, (*reversed(sizes), 4)).astype(F4)
        array = array_of(texels, dimensions)
        for normalized in (False, True):
            threads = Fetches(gpu, random, sizes, normalized=normalized)
            for mode in MODES:
                for linear in (False, True):
                    flags = NORMALIZED if normalized else 0
                    modes = (mode, "clamp" if mode == "wrap" else mode, mode)
                    object_ = texture(resource_of(array), modes, linear=linear, flags=flags, border=border)
                    want = reference.sample(
                        texels,
                        threads.at[:dimensions],
                        linear=linear,
                        modes=modes,
                        normalized=normalized,
                        border=border,
                    )
                    yield threads.run(f"tex_{dimensions}d", object_), want
                    ok(driver.cuTexObjectDestroy(int(object_)))


@case
def every_format_of_texels(gpu: Gpu, random: np.random.Generator) -> Pairs:
    threads = Fetches(gpu, random, (9, 5))
    for dtype in FORMATS:
        for channels in (1, 2, 4):
            shape = (5, 9, channels)
            if dtype.kind == "f":
                texels = random.uniform(-2, 2, shape).astype(dtype)
                numbers = texels.astype(F4)
            else:
                limits = np.iinfo(dtype)
                texels = random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
                texels[0, 0] = limits.min
                kind = I4 if dtype.kind == "i" else U4
                resource = resource_of(array_of(texels, 2))
                raw = threads.run(
                    "tex_2d_int" if kind is I4 else "tex_2d_unsigned",
                    texture(resource, flags=READ_AS_INTEGER),
                    kind,
                )
                yield raw[:, :channels], reference.sample(texels, threads.at[:2])
                if dtype.itemsize == 4:
                    continue
                numbers = reference.normalised(texels)
            resource = resource_of(array_of(texels, 2))
            for linear in (False, True):
                got = threads.run("tex_2d", texture(resource, linear=linear))
                yield got[:, :channels], reference.sample(numbers, threads.at[:2], linear=linear)


@case
def layers_and_cubes(gpu: Gpu, random: np.random.Generator) -> Pairs:
    for linear in (False, True):
        row = random.uniform(-1, 1, (7, 11, 4)).astype(F4)
        threads = Fetches(gpu, random, (11, 5))
        object_ = texture(resource_of(array_of(row, 1, LAYERED)), linear=linear)
        yield (
            threads.run("tex_a1d", object_),
            reference.layers(row, threads.at[:1], threads.layer.view(U4), linear=linear),
        )
        plane = random.uniform(-1, 1, (6, 5, 11, 4)).astype(F4)
        object_ = texture(resource_of(array_of(plane, 2, LAYERED)), linear=linear)
        yield (
            threads.run("tex_a2d", object_),
            reference.layers(plane, threads.at[:2], threads.layer.view(U4), linear=linear),
        )
        cube = random.uniform(-1, 1, (12, 8, 8, 4)).astype(F4)
        threads = Fetches(gpu, random, (1, 1, 1), normalized=True)
        face, s, t = reference.faces(*threads.at)
        options = {"linear": linear, "normalized": True, "modes": ("clamp", "clamp")}
        object_ = texture(resource_of(array_of(cube[:6], 2, CUBEMAP)), linear=linear, flags=NORMALIZED)
        yield threads.run("tex_cube", object_), reference.layers(cube[:6], (s, t), face, **options)
        object_ = texture(resource_of(array_of(cube, 2, CUBEMAP | LAYERED)), linear=linear, flags=NORMALIZED)
        which = 6 * np.clip(threads.layer.view(U4), 0, 1).astype(np.int64)
        yield threads.run("tex_acube", object_), reference.layers(cube, (s, t), which + face, **options)


@case
def a_seamless_cube_has_no_edges(gpu: Gpu, random: np.random.Generator) -> Pairs:
    # Each texel holds a smooth function of its direction, so that a step over an edge stays small.
    n = 32
    threads = Fetches(gpu, random, (1, 1, 1), normalized=True)
    m, (t, s) = 1.0, np.meshgrid(*[(np.arange(n) + 0.5) / n * 2 - 1] * 2, indexing="ij")
    sides = [(m, -t, -s), (-m, -t, s), (s, m, t), (s, -m, -t), (s, -t, m), (-s, -t, -m)]
    directions = np.array([np.stack(np.broadcast_arrays(*side), -1) for side in sides])
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    cube = np.zeros((6, n, n, 4), F4)
    cube[..., :3] = directions
    object_ = texture(resource_of(array_of(cube, 2, CUBEMAP)), linear=True, flags=NORMALIZED | SEAMLESS)
    threads.at[0][100:400] = threads.at[1][100:400]  # on and near the edges
    threads.at[2][200:400] = threads.at[1][200:400] * F4(0.3)
    got = threads.run("tex_cube", object_)[:, :3]
    want = np.stack(threads.at, -1) / np.linalg.norm(np.stack(threads.at, -1), axis=-1, keepdims=True)
    yield np.abs(got - want).max() < 0.05, True


@case
def linear_and_pitched_memory(gpu: Gpu, random: np.random.Generator) -> Pairs:
    for texels in (
        random.uniform(-1, 1, (777, 1)).astype(F4),
        random.integers(-99, 99, (500, 4)).astype(np.int16),
        random.integers(0, 255, (500, 2)).astype(np.uint8),
    ):
        threads = Fetches(gpu, random, (1,))
        threads.layer = random.integers(-50, len(texels) + 50, threads.n).astype(I4)
        inside = (threads.layer >= 0) & (threads.layer < len(texels))
        kept = gpu.array(texels)
        channels = texels.shape[-1]
        chosen = np.where(inside[:, None], texels[np.clip(threads.layer, 0, len(texels) - 1)], 0)
        if texels.dtype == F4:
            yield (
                threads.run("fetch_float", texture(linear_resource(kept.address, texels)))[:, :channels],
                chosen,
            )
        else:
            object_ = texture(linear_resource(kept.address, texels), flags=READ_AS_INTEGER)
            yield threads.run("fetch_int", object_, I4)[:, :channels], chosen
            object_ = texture(linear_resource(kept.address, texels))
            yield threads.run("fetch_float", object_)[:, :channels], reference.normalised(chosen)
    texels = random.uniform(-1, 1, (21, 33, 2)).astype(F4)
    threads = Fetches(gpu, random, (33, 21))
    address, pitch = ok(driver.cuMemAllocPitch(33 * 8, 21, 8))
    padded = np.full((21, pitch // 8, 2), 7, F4)
    padded[:, :33] = texels
    ok(driver.cuMemcpyHtoD(address, padded.ctypes.data, padded.nbytes))
    for linear in (False, True):
        got = threads.run("tex_2d", texture(pitched_resource(int(address), texels, pitch), linear=linear))
        yield got[:, :2], reference.sample(texels, threads.at[:2], linear=linear)


def pyramid(random: np.random.Generator, size: int) -> tuple[Any, list[Any]]:
    levels = [random.uniform(-1, 1, (size >> n, size >> n, 4)).astype(F4) for n in range(size.bit_length())]
    mipmap = ok(driver.cuMipmappedArrayCreate(describe(levels[0], 2, 0), 100))
    for n, level in enumerate(levels):
        copy(level, ok(driver.cuMipmappedArrayGetLevel(mipmap, n)))
    return mipmap, levels


def at_level(levels: list[Any], coordinates: Any, level: Any, *, between: bool, **options: Any) -> Any:
    every = np.array([reference.sample(texels, coordinates, **options) for texels in levels])
    threads = np.arange(len(level))
    level = np.clip(level, 0, len(levels) - 1)
    if not between:
        return every[np.floor(level + F4(0.5)).astype(int), threads]
    first = np.floor(level).astype(int)
    weight = (np.floor((level - np.floor(level)) * F4(256) + F4(0.5)) / 256.0)[:, None]
    return (1 - weight) * every[first, threads] + weight * every[
        np.minimum(first + 1, len(levels) - 1), threads
    ]


@case
def levels_of_mipmapped_arrays(gpu: Gpu, random: np.random.Generator) -> Pairs:
    mipmap, levels = pyramid(random, 16)
    threads = Fetches(gpu, random, (1, 1), normalized=True)
    threads.at[2] = random.uniform(-2, 7, threads.n).astype(F4)
    options = {"linear": True, "normalized": True, "modes": ("wrap", "mirror")}
    for between in (False, True):
        settings = {"linear": True, "flags": NORMALIZED, "modes": ("wrap", "mirror", "clamp")}
        object_ = texture(resource_of(mipmap), levels=(between, 0, 0, 99), **settings)
        want = at_level(levels, threads.at[:2], threads.at[2], between=between, **options)
        yield threads.run("level_2d", object_), want
        object_ = texture(resource_of(mipmap), levels=(between, 0.5, 1, 2.25), **settings)
        level = np.clip(threads.at[2] + F4(0.5), F4(1), F4(2.25))
        yield (
            threads.run("level_2d", object_),
            at_level(levels, threads.at[:2], level, between=between, **options),
        )
    object_ = texture(resource_of(mipmap), levels=(False, 0, 0, 99), **settings)
    yield threads.run("tex_2d", object_), reference.sample(levels[0], threads.at[:2], **options)
    threads.at[2] = (F4(2) ** random.integers(-6, 1, threads.n)).astype(F4)
    level = np.log2(threads.at[2] * F4(16))
    yield (
        threads.run("gradient_2d", object_),
        at_level(levels, threads.at[:2], level, between=False, **options),
    )
    view = driver.CUDA_RESOURCE_VIEW_DESC()
    view.firstMipmapLevel, view.lastMipmapLevel, view.width, view.height = 1, 2, 8, 8
    object_ = texture(resource_of(mipmap), levels=(False, 0, 0, 99), view=view, **settings)
    want = at_level(levels[1:3], threads.at[:2], threads.at[2], between=False, **options)
    yield threads.run("level_2d", object_), want


@case
def gathers(gpu: Gpu, random: np.random.Generator) -> Pairs:
    texels = random.uniform(-1, 1, (6, 9, 4)).astype(F4)
    threads = Fetches(gpu, random, (9, 6))
    object_ = texture(resource_of(array_of(texels, 2, GATHER)))
    x, y = (np.floor(c - F4(0.5)).astype(int) for c in threads.at[:2])
    columns, rows = [np.clip(x + d, 0, 8) for d in (0, 1)], [np.clip(y + d, 0, 5) for d in (0, 1)]
    corners = [(rows[1], columns[0]), (rows[1], columns[1]), (rows[0], columns[1]), (rows[0], columns[0])]
    for n, channel in enumerate("rgba"):
        yield threads.run(f"gather_{channel}", object_), np.stack([texels[c][:, n] for c in corners], -1)


@case
def srgb_views_halves_and_residence(gpu: Gpu, random: np.random.Generator) -> Pairs:
    texels = random.integers(0, 256, (5, 9, 4)).astype(np.uint8)
    threads = Fetches(gpu, random, (9, 5))
    numbers = texels / 255.0
    numbers[..., :3] = np.where(
        numbers[..., :3] <= 0.04045, numbers[..., :3] / 12.92, ((numbers[..., :3] + 0.055) / 1.055) ** 2.4
    )
    array = array_of(texels, 2)
    want = reference.sample(numbers, threads.at[:2], linear=True)
    yield threads.run("tex_2d", texture(resource_of(array), linear=True, flags=SRGB)), want
    view = driver.CUDA_RESOURCE_VIEW_DESC()
    view.format, view.width, view.height = driver.CUresourceViewFormat.CU_RES_VIEW_FORMAT_UINT_1X32, 9, 5
    object_ = texture(resource_of(array), flags=READ_AS_INTEGER, view=view)
    yield (
        threads.run("tex_2d_unsigned", object_, U4)[:, :1],
        reference.sample(texels.view(U4), threads.at[:2]),
    )
    numbers = random.uniform(-1, 1, (5, 9, 4)).astype(F4)
    object_ = texture(resource_of(array_of(numbers, 2)))
    want = reference.sample(numbers, threads.at[:2])
    yield threads.run("halves", object_, np.uint16).view(np.float16), want.astype(np.float16)
    yield threads.run("resident_2d", object_), want
    other = random.uniform(-1, 1, (5, 9, 4)).astype(F4)
    got = threads.run("two_textures", object_, F4, texture(resource_of(array_of(other, 2))))
    i = np.arange(threads.n)[:, None]
    want = np.where(i % 2, want, reference.sample(other, threads.at[:2]))
    yield got, np.where(i % 3, want, 0)


# --- surfaces ---


@case
def surfaces_of_every_element_size(gpu: Gpu, random: np.random.Generator) -> Pairs:
    for name, dtype, channels in (
        ("uchar", np.uint8, 1),
        ("ushort2", np.uint16, 2),
        ("float", F4, 1),
        ("uint2", U4, 2),
        ("float4", F4, 4),
    ):
        values = random.integers(0, 200, (7, 37, channels)).astype(dtype)
        one, two = array_of(values, 2, SURFACE), array_of(np.zeros_like(values), 2, SURFACE)
        gpu.launch(FILE, f"shift_{name}", (2, 7), 32, surface(one), surface(two), I4(37), I4(7))
        yield values_of(two, values), np.roll(values, 1, 0)


@case
def surface_boundaries(gpu: Gpu, random: np.random.Generator) -> Pairs:
    values = random.integers(0, 200, (3, 5, 1)).astype(I4)
    array, out = array_of(values, 2, SURFACE), gpu.zeros(64, I4)
    i = np.arange(64)
    x, y = i % 8 - 2, i // 8 - 2
    gpu.launch(FILE, "clamped_reads", 1, 64, surface(array), out, I4(64))
    yield out.get(), values[np.clip(y, 0, 2), np.clip(x, 0, 4), 0]
    gpu.launch(FILE, "zero_reads", 1, 64, surface(array), out, I4(64))
    inside = (x >= 0) & (x < 5) & (y >= 0) & (y < 3)
    yield out.get(), np.where(inside, values[np.clip(y, 0, 2), np.clip(x, 0, 4), 0], 0)
    yield values_of(array, values), values


@case
def surfaces_of_every_shape(gpu: Gpu, random: np.random.Generator) -> Pairs:
    line, box = np.zeros((4, 1), I4), np.zeros((2, 3, 4, 1), I4)
    cube = np.zeros((6, 4, 4, 1), I4)
    arrays = [
        array_of(line, 1, SURFACE),
        array_of(box, 3, SURFACE),
        array_of(box, 2, SURFACE | LAYERED),
        array_of(cube, 2, SURFACE | CUBEMAP),
    ]
    gpu.launch(FILE, "numbered", 1, 4, *[surface(a) for a in arrays])
    z, y, x = np.indices((2, 3, 4))
    yield values_of(arrays[0], line)[:, 0], np.arange(4)
    yield values_of(arrays[1], box)[..., 0], x + 10 * y + 100 * z
    yield values_of(arrays[2], box)[..., 0], x + 10 * y + 100 * z + 1000
    face, y, x = np.indices((6, 4, 4))
    yield values_of(arrays[3], cube)[..., 0], x + 10 * y + 100 * face


@case
def surface_reductions_and_queries(gpu: Gpu, random: np.random.Generator) -> Pairs:
    values = np.zeros((2, 4, 1), I4)
    array = array_of(values, 2, SURFACE)
    gpu.launch(FILE, "reductions", 1, 64, surface(array))
    yield values_of(array, values)[:, :, 0], [[64 * 63 // 2, -63, 63, -1], [0] * 4]
    mipmap, _ = pyramid(random, 16)
    out = gpu.zeros(9, I4)
    gpu.launch(FILE, "questions", 1, 1, texture(resource_of(mipmap), flags=NORMALIZED), surface(array), out)
    yield out.get(), [16, 16, 1, 1, 0x10DE, 4, 4, 2, 0x10B0]


def main(name: str) -> None:
    gpu, random = Gpu(), np.random.default_rng(5)
    compared = 0
    for got, want in CASES[name](gpu, random):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        compared += 1
    print(f"{name}: {compared} comparisons agree")


if __name__ == "__main__":
    main(sys.argv[1])
