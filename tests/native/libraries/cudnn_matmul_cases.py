"""Products of matrices in cuDNN's operation graphs, and attention that is made of them, compared with NumPy's."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tests.native.libraries.cublas_cases import BFLOAT, HALF, numbers
from tests.native.libraries.cudnn import DATA, DESCRIPTOR, DOUBLE, HANDLE, INT64, TYPE, Cudnn, Tensor
from tests.native.libraries.device import Cases

__all__ = ["CASES"]

CASES = Cases()
case = CASES.add
Floats = np.ndarray[Any, Any]
ADD, MUL, EXP, SUB, DIV, NOT_LESS, SELECT, INDEX = 0, 1, 13, 9, 6, 303, 601, 501
LARGEST, SUM = 3, 0


class Graph:
    """A graph that is put together, with virtual tensors between its operations."""

    def __init__(self) -> None:
        self.n = Cudnn()
        self.operations: list[ctypes.c_void_p] = []
        self.where: dict[int, int] = {}

    def given(self, tensor: Tensor) -> ctypes.c_void_p:
        described, number = self.n.of(tensor)
        self.where[number] = tensor.address
        return described

    def between(self, *shape: int) -> ctypes.c_void_p:
        strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
        return self.n.tensor(shape, strides, np.float32, virtual=True)[0]

    def value(self, number: float, rank: int) -> ctypes.c_void_p:
        described, its = self.n.tensor((1,) * rank, (1,) * rank, np.float32, by_value=True)
        place = ctypes.c_float(number)
        self.n.kept.append(place)
        self.where[its] = ctypes.addressof(place)
        return described

    def matmul(
        self, a: Any, b: Any, c: Any, kind: Any = np.float32, lengths: Any = (), padding: float = 0
    ) -> None:
        how = self.n.node(18, {1500: (TYPE, DATA[kind]), 1503: (DOUBLE, padding)})
        words = {1520: (DESCRIPTOR, a), 1521: (DESCRIPTOR, b), 1522: (DESCRIPTOR, c), 1523: (DESCRIPTOR, how)}
        words.update({1525 + i: (DESCRIPTOR, one) for i, one in enumerate(lengths) if one})
        self.operations.append(self.n.node(19, words))

    def pointwise(
        self, mode: int, x: Any, y: Any, b: Any = None, t: Any = None, axis: int | None = None
    ) -> None:
        about: dict[int, Any] = {0: (14, mode), 1: (TYPE, 0)}
        if axis is not None:
            about[9] = (INT64, axis)
        words = {750: (DESCRIPTOR, self.n.node(0, about)), 751: (DESCRIPTOR, x), 753: (DESCRIPTOR, y)}
        for name, one in ((752, b), (758, t)):
            if one:
                words[name] = (DESCRIPTOR, one)
        self.operations.append(self.n.node(13, words))

    def reduction(self, operator: int, x: Any, y: Any) -> None:
        how = self.n.node(21, {1600: (18, operator), 1601: (TYPE, 0)})
        self.operations.append(
            self.n.node(22, {1610: (DESCRIPTOR, x), 1611: (DESCRIPTOR, y), 1612: (DESCRIPTOR, how)})
        )

    def view(self, x: Any, y: Any) -> None:
        self.operations.append(self.n.node(31, {2200: (DESCRIPTOR, x), 2201: (DESCRIPTOR, y)}))

    def run(self, plan: Any = None) -> int:
        return self.n.run(plan or self.n.plan(self.operations), self.where)


def far(got: Floats, wanted: Floats, within: float = 1e-4) -> str:
    """Return nothing where both are alike, else by how much they are not."""
    apart = float(np.max(np.abs(got.astype(np.float64) - wanted) / (1 + np.abs(wanted))))
    return "" if got.shape == wanted.shape and apart < within else f"{got.shape} {apart}"


def product(a: Floats, b: Floats, order: Any = None, kind: Any = None, within: float = 1e-4) -> str:
    """Multiply by the library and by NumPy, with A in another order of its dimensions."""
    kind = kind or a.dtype.type
    wide = [np.repeat(one, 1, 0).astype(np.float64) for one in (a, b)]
    shape = tuple(max(i, j) for i, j in zip(a.shape[:-2], b.shape[:-2], strict=True))
    for i, extent in enumerate(shape):
        wide = [np.repeat(one, extent // one.shape[i], i) for one in wide]
    wanted = wide[0] @ wide[1]
    g, c = Graph(), Tensor(np.zeros(wanted.shape, kind))
    g.matmul(
        g.given(Tensor(a, order)),
        g.given(Tensor(b)),
        g.given(c),
        np.float64 if kind == np.float64 else np.float32,
    )
    return f"{status}" if (status := g.run()) else far(c.get(), wanted, within)


@case
def products_of_every_shape() -> str:
    shapes = [((1, 1), (1, 1)), ((3, 5), (5, 7)), ((300, 700), (700, 290)), ((4, 40, 33), (4, 33, 70))]
    found = [product(numbers(a, np.float32), numbers(b, np.float32)) for a, b in shapes]
    return "; ".join(filter(None, found))


@case
def batches_that_one_side_repeats() -> str:
    found = [
        product(numbers((1, 4, 9, 5), np.float32), numbers((3, 1, 5, 6), np.float32)),
        product(
            numbers((2, 8, 9, 5), np.float32), numbers((2, 2, 5, 6), np.float32)
        ),  # four neighbours share one
    ]
    return "; ".join(filter(None, found))


@case
def matrices_in_other_orders_and_types() -> str:
    a, b = (2, 3, 20, 30), (2, 3, 30, 10)
    found = [
        product(numbers(a, np.float32), numbers(b, np.float32), order=(0, 1, 3, 2)),
        product(numbers(a, np.float32), numbers(b, np.float32), order=(0, 2, 1, 3)),
        product(numbers(a, np.float64), numbers(b, np.float64), within=1e-12),
        product(numbers(a, HALF), numbers(b, HALF), within=1e-2),
        product(numbers(a, BFLOAT), numbers(b, BFLOAT), within=3e-2),
        product(numbers(a, BFLOAT), numbers(b, np.float32), kind=np.float32),
    ]
    return "; ".join(filter(None, found))


@case
def lengths_of_each_batch() -> str:
    a, b = numbers((3, 20, 30), np.float32), numbers((3, 30, 10), np.float32)
    lengths = [np.array(one, np.int32).reshape(3, 1, 1) for one in ([20, 7, 0], [10, 10, 3], [30, 5, 12])]
    wanted = np.full((3, 20, 10), -2.0)
    for i, (m, n, k) in enumerate(zip(*(one.ravel() for one in lengths), strict=True)):
        wanted[i, :m, :n] = (a[i, :, :k].astype(np.float64) @ b[i, :k])[:m, :n]
    g, c = Graph(), Tensor(np.zeros((3, 20, 10), np.float32))
    on = [g.n.tensor((3, 1, 1), (1, 1, 1), np.int32) for _ in lengths]
    for (_, number), one in zip(on, lengths, strict=True):
        g.where[number] = Tensor(one).address
    g.matmul(g.given(Tensor(a)), g.given(Tensor(b)), g.given(c), lengths=[one for one, _ in on], padding=-2)
    return f"{status}" if (status := g.run()) else far(c.get(), wanted)


def attention(batch: int, heads: int, queries: int, keys: int, causal: bool, again: bool = False) -> str:
    """Compute attention with twelve operations, as frameworks put it together."""
    q, k, v = (numbers((batch, heads, s, 16), np.float32) for s in (queries, keys, keys))
    scores = q.astype(np.float64) @ k.transpose(0, 1, 3, 2) * 0.25
    if causal:
        scores = np.where(np.arange(queries)[:, None] >= np.arange(keys), scores, -1e9)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ v
    g, out = Graph(), Tensor(np.zeros(wanted.shape, np.float32))
    whole, column = (batch, heads, queries, keys), (batch, heads, queries, 1)
    turned = Tensor(np.ascontiguousarray(k.transpose(0, 1, 3, 2)), (0, 1, 3, 2))  # as k lies
    last = g.between(*whole)
    g.matmul(g.given(Tensor(q)), g.given(turned), last)
    scaled = g.between(*whole)
    g.pointwise(MUL, last, scaled, g.value(0.25, 4))
    if causal:
        rows, columns, seen, masked = (g.between(*whole) for _ in range(4))
        g.pointwise(INDEX, scaled, rows, axis=2)
        g.pointwise(INDEX, scaled, columns, axis=3)
        g.pointwise(NOT_LESS, rows, seen, columns)
        g.pointwise(SELECT, scaled, masked, g.value(-1e9, 4), seen)
        scaled = masked
    largest, total = g.between(*column), g.between(*column)
    less, powers, shares = (g.between(*whole) for _ in range(3))
    g.reduction(LARGEST, scaled, largest)
    g.pointwise(SUB, scaled, less, largest)
    g.pointwise(EXP, less, powers)
    g.reduction(SUM, powers, total)
    g.pointwise(DIV, powers, shares, total)
    g.matmul(shares, g.given(Tensor(v)), g.given(out))
    plan = g.n.plan(g.operations)
    most = 4 * batch * heads * queries * keys * 5
    if plan[1] > most + 4096 * 4:
        return f"a workspace of {plan[1]} bytes"  # of twelve tensors, a few are wanted at a time
    if again:
        plan = from_text(g.n, plan)
    return f"{status}" if (status := g.run(plan)) else far(out.get(), wanted)


def from_text(n: Cudnn, plan: tuple[ctypes.c_void_p, int]) -> tuple[ctypes.c_void_p, int]:
    """Return the plan as its text makes it."""
    get, count = n.library.cudnnBackendGetAttribute, ctypes.c_int64()
    assert get(plan[0], 405, 24, ctypes.c_int64(0), ctypes.byref(count), None) == 0
    text = ctypes.create_string_buffer(count.value)
    assert get(plan[0], 405, 24, count, ctypes.byref(count), text) == 0
    made = n.node(5, {400: (HANDLE, n.handle)}, finish=False)
    assert n.library.cudnnBackendSetAttribute(made, 405, 24, count, text) == 0
    assert n.library.cudnnBackendFinalize(made) == 0
    size = ctypes.c_int64()
    assert get(made, 402, INT64, ctypes.c_int64(1), ctypes.byref(count), ctypes.byref(size)) == 0
    assert size.value == plan[1]
    return made, size.value


@case
def attention_of_several_operations() -> str:
    found = [attention(2, 3, 70, 90, False), attention(1, 4, 128, 128, True), attention(2, 4, 128, 192, True)]
    return "; ".join(filter(None, found))


@case
def a_plan_that_was_kept_as_text() -> str:
    return attention(2, 2, 33, 40, True, again=True)


@case
def a_text_that_nobody_made_is_no_plan() -> str:
    n, found = Cudnn(), []
    good = b'{"gpukernel": 1, "plan": "' + b"0" * 64 + b'"}'
    for text in (
        b"{}",
        b'{"gpukernel": 1, "plan": ""}',
        good,
        good.replace(b"0", b"f"),
        good[:-3] + b'x"}',
        b"\xff" * 300,
    ):
        made = n.node(5, {400: (HANDLE, n.handle)}, finish=False)
        data = ctypes.create_string_buffer(text, len(text))
        assert n.library.cudnnBackendSetAttribute(made, 405, 24, ctypes.c_int64(len(text)), data) == 0
        found.append(n.library.cudnnBackendFinalize(made))
    return "" if all(3000 <= status < 3010 for status in found) else f"{found}"


@case
def a_view_of_the_same_memory() -> str:
    a = numbers((2, 30, 20), np.float32)
    g, c = Graph(), Tensor(np.zeros((2, 20, 30), np.float32))
    turned = g.n.tensor((2, 20, 30), (600, 1, 20), np.float32, virtual=True)[0]
    g.view(g.given(Tensor(a)), turned)
    g.pointwise(ADD, turned, g.given(c), g.value(1, 3))
    return f"{status}" if (status := g.run()) else far(c.get(), a.transpose(0, 2, 1) + 1.0)


@case
def a_sum_over_neighbours() -> str:
    a = numbers((2, 8, 5, 3), np.float32)
    g, c = Graph(), Tensor(np.zeros((2, 2, 5, 3), np.float32))
    g.reduction(SUM, g.given(Tensor(a)), g.given(c))  # as the heads of a group have one gradient
    wanted = a.reshape(2, 2, 4, 5, 3).astype(np.float64).sum(2)
    return f"{status}" if (status := g.run()) else far(c.get(), wanted)


@case
def a_virtual_tensor_whose_strides_overlap() -> str:
    a = numbers((2, 4, 16, 8), np.float32)
    g, c = Graph(), Tensor(np.zeros(a.shape, np.float32))
    between = g.n.tensor(a.shape, (512, 128, 32, 1), np.float32, virtual=True)[0]  # as a frontend infers them
    g.pointwise(MUL, g.given(Tensor(a)), between, g.value(2, 4))
    g.pointwise(ADD, between, g.given(c), g.value(1, 4))
    return f"{status}" if (status := g.run()) else far(c.get(), 2.0 * a + 1)


if __name__ == "__main__":
    CASES.main()
