"""Halide's pipelines with GPU schedules: it compiles them to PTX itself."""

from __future__ import annotations

from typing import Any

import halide as hl
import numpy as np
import pytest

TARGET = hl.Target("host-cuda-cuda_capability_80")
RANDOM = np.random.default_rng(1)


def realized(function: Any, kind: Any, *sizes: int) -> np.ndarray[Any, Any]:
    out = hl.Buffer(kind, list(sizes))
    function.realize(out, TARGET)
    out.copy_to_host()
    return np.array(out)


def variables(names: str) -> list[Any]:
    return [hl.Var(name) for name in names.split()]


@pytest.mark.parametrize("tile", [(16, 8), (32, 4), (8, 8)])
def test_a_stencil_in_tiles(tile: tuple[int, int]) -> None:
    x, y, inner, outer = variables("x y inner outer")
    image = RANDOM.random((96, 130)).astype(np.float32)
    clamped = hl.BoundaryConditions.repeat_edge(hl.Buffer(image))
    blur = hl.Func("blur")
    blur[x, y] = (clamped[x - 1, y] + clamped[x, y] * 2 + clamped[x + 1, y]) / 4
    blur.gpu_tile(x, y, inner, outer, *tile)
    wide = np.pad(image, ((0, 0), (1, 1)), mode="edge")
    expected = (wide[:, :-2] + 2 * image + wide[:, 2:]) / 4
    np.testing.assert_allclose(realized(blur, hl.Float(32), 130, 96), expected, rtol=1e-5)


def test_a_stage_in_shared_memory() -> None:
    x, y, inner, outer, block_x, block_y = variables("x y inner outer block_x block_y")
    image = RANDOM.integers(0, 255, (64, 64)).astype(np.int32)
    clamped = hl.BoundaryConditions.constant_exterior(hl.Buffer(image), 0)
    rows, columns = hl.Func("rows"), hl.Func("columns")
    rows[x, y] = clamped[x - 1, y] + clamped[x, y] + clamped[x + 1, y]
    columns[x, y] = rows[x, y - 1] + rows[x, y] + rows[x, y + 1]
    columns.gpu_tile(x, y, block_x, block_y, inner, outer, 16, 16)
    rows.compute_at(columns, block_x).gpu_threads(x, y)
    wide = np.pad(image, 1)
    expected = sum(wide[i : i + 64, j : j + 64] for i in range(3) for j in range(3))
    np.testing.assert_array_equal(realized(columns, hl.Int(32), 64, 64), expected)


def test_a_product_of_matrices() -> None:
    x, y, inner, outer = variables("x y inner outer")
    a, b = RANDOM.random((48, 40)).astype(np.float32), RANDOM.random((40, 56)).astype(np.float32)
    first, second, k = hl.Buffer(a), hl.Buffer(b), hl.RDom([(0, 40)])
    product = hl.Func("product")
    product[x, y] = 0.0
    product[x, y] += first[k, y] * second[x, k]
    product.gpu_tile(x, y, inner, outer, 8, 8)
    product.update(0).gpu_tile(x, y, inner, outer, 8, 8)
    np.testing.assert_allclose(realized(product, hl.Float(32), 56, 48), a @ b, rtol=1e-4)


def test_a_histogram_with_atomics() -> None:
    x, inner = variables("x inner")
    values = RANDOM.integers(0, 16, 4000).astype(np.int32)
    data, r = hl.Buffer(values), hl.RDom([(0, 4000)])
    counts = hl.Func("counts")
    counts[x] = 0
    counts[hl.clamp(data[r], 0, 15)] += 1
    outer, inside = hl.RVar("outer"), hl.RVar("inside")
    counts.gpu_tile(x, inner, 16)
    counts.update(0).atomic().split(r, outer, inside, 64).gpu_blocks(outer).gpu_threads(inside)
    np.testing.assert_array_equal(realized(counts, hl.Int(32), 16), np.bincount(values, minlength=16))
