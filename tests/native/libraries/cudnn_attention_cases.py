"""Attention, softmax and band masks as single operations of cuDNN's graphs, as its frontend of 9.13 and newer asks for them, compared with NumPy's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tests.native.libraries.cublas_cases import BFLOAT, HALF, numbers
from tests.native.libraries.cudnn import DESCRIPTOR, FLOAT, HANDLE, INT64, Tensor
from tests.native.libraries.cudnn_matmul_cases import ADD, EXP, MUL, Floats, Graph, far, from_text
from tests.native.libraries.device import Cases

__all__ = ["CASES"]

CASES = Cases()
case = CASES.add

GREATER, NOT_LESS = 302, 303
Q, K, V, RESULT, STATISTICS, SCALE = range(2800, 2806)
OF_QUERIES, OF_KEYS, WITHIN, INPUT, OUTPUT, SOFTMAX, SEED, OFFSET, DRAWN, DROPPED = range(2809, 2819)
OPERATION = {"attention": 41, "backward": 43, "band mask": 44, "softmax": 45}


class Attention(Graph):
    """A graph of these operations."""

    def single(self, operation: str, words: dict[int, Any]) -> ctypes.c_void_p:
        """Return an operation: descriptors by their attributes, and other values with their types."""
        typed = {
            name: one if isinstance(one, tuple) else (DESCRIPTOR, one)
            for name, one in words.items()
            if one is not None
        }
        return self.n.node(OPERATION[operation], typed)

    def number(self, value: int) -> ctypes.c_void_p:
        """Return an integer by value, of one dimension as the frontend has them."""
        described, its = self.n.tensor((1,), (1,), np.int32, by_value=True)
        place = ctypes.c_int32(value)
        self.n.kept.append(place)
        self.where[its] = ctypes.addressof(place)
        return described

    def inner(self, shape: tuple[int, ...]) -> tuple[ctypes.c_void_p, int]:
        """Return a virtual tensor, and its number."""
        strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
        return self.n.tensor(shape, strides, np.float32, virtual=True)

    def within(self, operations: list[ctypes.c_void_p]) -> ctypes.c_void_p:
        """Return a graph without a handle, as the frontend makes those that are part of an operation."""
        return self.n.node(15, {801: (DESCRIPTOR, operations)})

    def status(self) -> int:
        """Return what becomes of the graph as a whole."""
        graph = self.n.node(
            15, {800: (HANDLE, self.n.handle), 801: (DESCRIPTOR, self.operations)}, finish=False
        )
        return int(self.n.library.cudnnBackendFinalize(graph))


Modify = Callable[[Attention, tuple[int, ...]], tuple[list[ctypes.c_void_p], int, int]]
"""Makes the operations upon scores of a shape; returns them with the numbers of the first tensor and the last."""


def softmax(scores: Floats) -> tuple[Floats, Floats]:
    """Return the shares of each row, 0 where there is nothing, and the logarithms of the rows' sums."""
    largest = scores.max(-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isinf(largest), 0, largest))
    total = powers.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        sums = np.log(total) + np.where(np.isinf(largest), 0, largest)
    return np.where(total > 0, powers / np.maximum(total, 1e-300), 0), sums


def attend(
    extents: tuple[int, ...],
    *,
    kind: Any = HALF,
    modify: Modify | None = None,
    then: Callable[[Floats], Floats] = lambda scores: scores,
    lengths: tuple[Iterable[int], Iterable[int]] | None = None,
    statistics: str = "",
    scale: float | None = 0.2,
    order: tuple[int, ...] = (0, 2, 1, 3),
    as_text: bool = False,
) -> str:
    """Compute attention of ``batch, heads, heads of keys, queries, keys, width`` with one operation, and by NumPy; `then` does what `modify` asks for."""
    batch, heads, of_keys, queries, keys, width = extents
    q, k, v = (
        numbers(shape, kind)
        for shape in (
            (batch, heads, queries, width),
            (batch, of_keys, keys, width),
            (batch, of_keys, keys, width),
        )
    )
    if lengths:  # what lies behind a length may be anything
        for i, (_, keys_there) in enumerate(zip(*lengths, strict=True)):
            k[i, :, keys_there:] = v[i, :, keys_there:] = np.nan
    g, out = Attention(), Tensor(np.zeros(q.shape, kind), order)
    words: dict[int, Any] = {
        Q: g.given(Tensor(q, order)), K: g.given(Tensor(k, order)), V: g.given(Tensor(v, order)), RESULT: g.given(out)
    }  # fmt: skip
    if scale is not None:
        words[SCALE] = g.value(scale, 4)
    whole = (batch, heads, queries, keys)
    if modify:
        operations, first, last = modify(g, whole)
        words |= {WITHIN: g.within(operations), INPUT: (INT64, first), OUTPUT: (INT64, last)}
    for name, one in zip((OF_QUERIES, OF_KEYS), lengths or (), strict=False):
        words[name] = g.given(Tensor(np.array(list(one), np.int32).reshape(batch, 1, 1, 1)))
    sums = Tensor(np.zeros((batch, heads, queries, 1), np.float32))
    if statistics == "softmax":
        words[SOFTMAX] = g.single(
            "softmax", {3100: g.inner(whole)[0], 3101: g.inner(whole)[0], 3102: g.given(sums)}
        )
    elif statistics:
        words[STATISTICS] = g.given(sums)
    g.operations = [g.single("attention", words)]
    plan = g.n.plan(g.operations)
    if status := g.run(from_text(g.n, plan) if as_text else plan):
        return f"status {status}"
    repeat = heads // of_keys
    wide = [np.repeat(one.astype(np.float64), repeat, 1) for one in (k, v)]
    scores = then(
        q.astype(np.float64) @ np.nan_to_num(wide[0]).transpose(0, 1, 3, 2) * (1 if scale is None else scale)
    )
    for i, (_, there) in enumerate(zip(*lengths, strict=True) if lengths else ()):
        scores[i, :, :, there:] = -np.inf
    shares, of_rows = softmax(scores)
    wanted = shares @ np.nan_to_num(wide[1])
    for i, (there, _) in enumerate(zip(*lengths, strict=True) if lengths else ()):
        wanted[i, :, there:] = 0
        of_rows[i, :, there:] = 0
    near = {HALF: 2e-3, BFLOAT: 2e-2}.get(kind, 1e-4)
    found = far(out.get(), wanted, near)
    if statistics and not found:
        got = sums.get()
        for i, (there, _) in enumerate(zip(*lengths, strict=True) if lengths else ()):
            got[i, :, there:] = 0
        infinite = np.isinf(of_rows)
        if not np.array_equal(np.isneginf(got), infinite):
            return "other rows than these have nothing"
        found = far(np.where(infinite, 0, got), np.where(infinite, 0, of_rows), 1e-3)
    return found


def banded(*masks: dict[str, Any]) -> Modify:
    """Return what makes band masks, one after another, with these bounds."""

    def modify(g: Attention, whole: tuple[int, ...]) -> tuple[list[ctypes.c_void_p], int, int]:
        (at, first), operations = g.inner(whole), []
        last = first
        for mask in masks:
            masked, last = g.inner(whole)
            words: dict[int, Any] = {3000: at, 3005: g.value(-np.inf, 4)}
            for name, bound in zip((3001, 3002, 3004), ("keys", "queries", "right"), strict=True):
                words[name] = g.number(mask[bound]) if bound in mask else None
            words[3003] = g.value(mask["left"], 4) if "left" in mask else None
            words |= {3006: masked, 3007: (14, GREATER if "left" in mask else NOT_LESS)}
            operations.append(g.single("band mask", words))
            at = masked
        return operations, first, last

    return modify


def kept(scores: Floats, keep: Callable[[Any, Any], Any]) -> Floats:
    """Return scores of which those stay whose row and column `keep` takes."""
    rows, columns = np.arange(scores.shape[-2])[:, None], np.arange(scores.shape[-1])
    return np.where(keep(rows, columns), scores, -np.inf)


@case
def attention_of_every_type_and_order() -> str:
    found = [
        attend((2, 3, 3, 70, 90, 16)),
        attend((1, 2, 2, 128, 128, 64), kind=BFLOAT),
        attend((2, 2, 2, 33, 40, 24), kind=np.float32, order=(0, 1, 2, 3)),
        attend((2, 2, 2, 33, 40, 24), kind=np.float32, scale=None),
        attend((2, 8, 2, 20, 30, 16)),  # four heads of queries share one of keys
    ]
    return "; ".join(filter(None, found))


@case
def a_scale_on_the_device() -> str:
    g = Attention()
    q, k, v = (Tensor(numbers((1, 1, 8, 8), np.float32)) for _ in range(3))
    out = Tensor(np.zeros((1, 1, 8, 8), np.float32))
    scale = Tensor(np.full((1, 1, 1, 1), 0.5, np.float32))
    g.operations = [
        g.single("attention", {name: g.given(one) for name, one in zip((Q, K, V, RESULT, SCALE), (q, k, v, out, scale), strict=True)})
    ]  # fmt: skip
    wanted = softmax(q.get().astype(np.float64) @ k.get().transpose(0, 1, 3, 2) * 0.5)[0] @ v.get()
    return f"{status}" if (status := g.run()) else far(out.get(), wanted)


@case
def what_training_keeps() -> str:
    found = [attend((2, 3, 3, 40, 50, 16), statistics=how) for how in ("softmax", "of its own")]
    return "; ".join(filter(None, found))


@case
def causal_masks_and_windows() -> str:
    found = [
        attend((2, 2, 2, 40, 40, 16), modify=banded({}), then=lambda s: kept(s, lambda i, j: i >= j)),
        # The diagonal ends in the last row and column: five more keys than queries, and ten queries too many.
        attend((1, 2, 2, 35, 40, 16), modify=banded({"keys": 40, "queries": 35}), then=lambda s: kept(s, lambda i, j: i + 5 >= j)),
        attend(
            (1, 2, 2, 40, 30, 16), modify=banded({"keys": 30, "queries": 40}), statistics="softmax",
            then=lambda s: kept(s, lambda i, j: i - 10 >= j),
        ),
        attend(
            (1, 2, 2, 40, 40, 16), modify=banded({"right": 3}, {"left": 7.0}),
            then=lambda s: kept(s, lambda i, j: (i + 3 >= j) & (j + 7 > i)),
        ),
        attend(
            (1, 1, 1, 20, 40, 16), modify=banded({"left": 4, "keys": 40, "queries": 20}),
            then=lambda s: kept(s, lambda i, j: j + 4 - 40 + 20 > i),
        ),
    ]  # fmt: skip
    return "; ".join(filter(None, found))


@case
def lengths_of_each_batch() -> str:
    lengths = ([40, 7, 20], [50, 13, 0])
    found = [
        attend((3, 2, 2, 40, 50, 16), lengths=lengths, statistics="softmax"),
        attend((3, 4, 2, 40, 50, 16), lengths=lengths, modify=banded({}), then=lambda s: kept(s, lambda i, j: i >= j)),
    ]  # fmt: skip
    return "; ".join(filter(None, found))


@case
def what_a_program_does_with_the_scores() -> str:
    bias = numbers((1, 2, 30, 20), np.float32)

    def biased(g: Attention, whole: tuple[int, ...]) -> tuple[list[ctypes.c_void_p], int, int]:
        (x, first), (y, last) = g.inner(whole), g.inner(whole)
        g.pointwise(ADD, x, y, g.given(Tensor(bias)))
        return g.operations, first, last

    def halved(g: Attention, whole: tuple[int, ...]) -> tuple[list[ctypes.c_void_p], int, int]:
        (x, first), (between, _), (y, last) = (g.inner(whole) for _ in range(3))
        g.pointwise(MUL, x, between, g.constant(0.5))
        g.pointwise(ADD, between, y, g.constant(1.0))
        return g.operations, first, last

    found = [
        attend((2, 2, 2, 30, 20, 16), modify=biased, then=lambda s: s + bias),
        attend((2, 2, 2, 30, 20, 16), modify=halved, then=lambda s: s * 0.5 + 1, as_text=True),
    ]
    return "; ".join(filter(None, found))


@case
def dropout_draws_the_mask_that_it_tells() -> str:
    q, k, v = (numbers((2, 3, 40, 16), np.float32) for _ in range(3))
    g, out, mask = (
        Attention(),
        Tensor(np.zeros(v.shape, np.float32)),
        Tensor(np.zeros((2, 3, 40, 40), np.float32)),
    )
    words: dict[int, Any] = {
        Q: g.given(Tensor(q)),
        K: g.given(Tensor(k)),
        V: g.given(Tensor(v)),
        RESULT: g.given(out),
    }
    words |= {
        SEED: g.whole(42),
        OFFSET: g.whole(7, on_device=True),
        DRAWN: g.given(mask),
        DROPPED: (FLOAT, 0.3),
    }
    g.operations = [g.single("attention", words)]
    if status := g.run():
        return f"{status}"
    seen = mask.get()
    wanted = softmax(q.astype(np.float64) @ k.transpose(0, 1, 3, 2))[0] * seen / 0.7 @ v
    return far(out.get(), wanted) or ("" if 0.65 < seen.mean() < 0.75 else f"{seen.mean()} are kept")


@case
def softmax_of_rows() -> str:
    x = numbers((2, 3, 20, 30), np.float32) * 5
    x[0, 0, 3] = -np.inf
    found = []
    for sink in (None, numbers((1, 3, 1, 1), np.float32)):
        g, y = Attention(), Tensor(np.zeros(x.shape, np.float32))
        rows = [Tensor(np.zeros((2, 3, 20, 1), np.float32)) for _ in range(3)]
        words = {3100: g.given(Tensor(x)), 3101: g.given(y), 3102: g.given(rows[0])}
        if sink is None:
            words |= {3103: g.given(rows[1]), 3104: g.given(rows[2])}
        else:
            words[3105] = g.given(Tensor(sink))
        g.operations = [g.single("softmax", words)]
        if status := g.run():
            return f"{status}"
        wide = x.astype(np.float64)
        if sink is not None:
            wide = np.concatenate([wide, np.broadcast_to(sink, (2, 3, 20, 1))], -1)
        shares, sums = softmax(wide)
        found.append(far(y.get(), shares[..., :30]))
        logs = rows[0].get()
        found.append("" if np.array_equal(np.isneginf(logs), np.isneginf(sums)) else "rows of nothing")
        found.append(far(np.where(np.isinf(sums), 0, logs), np.where(np.isinf(sums), 0, sums)))
        if sink is None:
            largest = x.max(-1, keepdims=True)
            found.append("" if np.array_equal(rows[1].get(), largest) else "the largest elements")
            found.append(far(rows[2].get(), np.where(np.isinf(largest), 0, np.exp(sums - largest))))
    return "; ".join(filter(None, found))


@case
def a_number_that_is_none_stays_one() -> str:
    x = numbers((1, 1, 4, 8), np.float32)
    x[0, 0, 1, 2], x[0, 0, 2, 3] = np.nan, np.inf
    g, y = Attention(), Tensor(np.zeros(x.shape, np.float32))
    g.operations = [g.single("softmax", {3100: g.given(Tensor(x)), 3101: g.given(y)})]
    if status := g.run():
        return f"{status}"
    none = np.isnan(y.get()).all(-1).ravel().tolist()
    return "" if none == [False, True, True, False] and np.isnan(y.get()).sum() == 16 else f"{y.get()}"


@case
def the_way_back() -> str:
    found = []
    for heads, of_keys, lengths in ((3, 3, None), (4, 2, None), (2, 2, ([30, 9], [20, 11]))):
        q, o, slopes = (numbers((2, heads, 30, 16), np.float32) for _ in range(3))
        k, v = (numbers((2, of_keys, 20, 16), np.float32) for _ in range(2))
        wide = [np.repeat(one.astype(np.float64), heads // of_keys, 1) for one in (k, v)]
        scores = q.astype(np.float64) @ wide[0].transpose(0, 1, 3, 2) * 0.2
        valid = np.ones((2, 1, 30, 1))
        for i, (rows, columns) in enumerate(zip(*lengths, strict=True) if lengths else ()):
            scores[i, :, :, columns:] = -np.inf
            valid[i, :, rows:] = 0
        shares, sums = softmax(scores)
        o = (shares @ wide[1]).astype(np.float32)
        there = slopes * valid
        of_shares = there @ wide[1].transpose(0, 1, 3, 2)
        of_scores = shares * (of_shares - (there * o).sum(-1, keepdims=True)) * 0.2
        wanted = [
            of_scores @ wide[0],
            of_scores.transpose(0, 1, 3, 2) @ q,
            shares.transpose(0, 1, 3, 2) @ there,
        ]
        wanted[1:] = [one.reshape(2, of_keys, -1, 20, 16).sum(2) for one in wanted[1:]]
        if lengths:  # what lies behind a length may be anything
            for i, (rows, columns) in enumerate(zip(*lengths, strict=True)):
                slopes[i, :, rows:] = q[i, :, rows:] = np.nan
                k[i, :, columns:] = v[i, :, columns:] = np.nan
        g, results = Attention(), [Tensor(np.zeros(one.shape, np.float32)) for one in (q, k, v)]
        given = [*map(Tensor, (q, k, v, o, sums.astype(np.float32)))]
        words: dict[int, Any] = {2851 + i: g.given(one) for i, one in enumerate(given)} | {
            2856: g.value(0.2, 4)
        }
        words |= {2859 + i: g.given(one) for i, one in enumerate((*results, Tensor(slopes)))}
        for name, one in zip((2857, 2858), lengths or (), strict=False):
            words[name] = g.given(Tensor(np.array(one, np.int32).reshape(2, 1, 1, 1)))
        g.operations = [g.single("backward", words)]
        if status := g.run():
            return f"{status}"
        found += [far(result.get(), right) for result, right in zip(results, wanted, strict=True)]
    return "; ".join(filter(None, found))


@case
def what_is_not_there_is_refused() -> str:
    """Masks of blocks, pages, cumulative lengths and scales of narrow types, by their attributes; and what makes no sense."""
    found: dict[int | str, int] = {}
    for name in (2806, 2807, 2808, 2820, 2825):
        g = Attention()
        words: dict[int, Any] = {}
        for one in (Q, K, V, RESULT, name):
            words[one] = g.given(Tensor(np.zeros((1, 1, 8, 8), np.float32)))
        g.operations = [g.single("attention", words)]
        found[name] = g.status()
    wrong = {
        "no value": {Q: (1, 1, 8, 8), K: (1, 1, 8, 8), RESULT: (1, 1, 8, 8)},
        "widths": {Q: (1, 1, 8, 8), K: (1, 1, 8, 4), V: (1, 1, 8, 8), RESULT: (1, 1, 8, 8)},
        "heads": {Q: (1, 3, 8, 8), K: (1, 2, 8, 8), V: (1, 2, 8, 8), RESULT: (1, 3, 8, 8)},
    }
    for what, shapes in wrong.items():
        g = Attention()
        g.operations = [
            g.single(
                "attention",
                {name: g.given(Tensor(np.zeros(shape, np.float32))) for name, shape in shapes.items()},
            )
        ]
        found[what] = g.status()
    g = Attention()
    shape = (1, 1, 8, 8)
    x, y = g.inner(shape)[0], g.inner(shape)[0]
    g.pointwise(EXP, x, y)
    words = {name: g.given(Tensor(np.zeros(shape, np.float32))) for name in (Q, K, V, RESULT)}
    words |= {WITHIN: g.within(g.operations), INPUT: (INT64, 4711), OUTPUT: (INT64, 4712)}
    g.operations = [g.single("attention", words)]
    found["numbers of no tensor"] = g.status()
    right: dict[int | str, int] = dict.fromkeys((2806, 2807, 2808, 2820, 2825), 3000) | dict.fromkeys(
        (*wrong, "numbers of no tensor"), 2000
    )
    return "" if found == right else f"{found}"


if __name__ == "__main__":
    CASES.main()
