"""Products of matrices in cuDNN's operation graphs, and attention that is made of them, compared with NumPy's."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tests.native.libraries.cublas_cases import BFLOAT, HALF, numbers
from tests.native.libraries.cudnn import DATA, DESCRIPTOR, DOUBLE, HANDLE, INT64, TYPE, Cudnn, Tensor
from tests.native.libraries.device import Cases

__all__ = ["ADD", "CASES", "EXP", "MUL", "Floats", "Graph", "far", "from_text"]

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

    def constant(self, number: float) -> ctypes.c_void_p:
        place = ctypes.c_float(number)
        return self.n.tensor((1,), (1,), np.float32, by_value=True, constant=ctypes.addressof(place))[0]

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

    def random(self, y: Any, distribution: int, numbers: dict[int, float], seed: Any, offset: Any) -> None:
        about = {2300: (29, distribution), **{name: (DOUBLE, value) for name, value in numbers.items()}}
        words = {
            2310: (DESCRIPTOR, y),
            2312: (DESCRIPTOR, self.n.node(32, about)),
            2313: (DESCRIPTOR, offset),
        }
        words[2311] = (INT64, seed) if isinstance(seed, int) else (DESCRIPTOR, seed)
        self.operations.append(self.n.node(33, words))

    def whole(self, number: int, on_device: bool = False) -> ctypes.c_void_p:
        described, its = self.n.tensor((1, 1, 1, 1), (1, 1, 1, 1), np.int64, by_value=not on_device)
        if on_device:
            self.where[its] = Tensor(np.array([number], np.int64)).address
        else:
            place = ctypes.c_int64(number)
            self.n.kept.append(place)
            self.where[its] = ctypes.addressof(place)
        return described

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


BERNOULLI, UNIFORM, NORMAL = 0, 1, 2
LARGE = (1 << 60) + 1  # more digits than a double has


def drawn(distribution: int, numbers: dict[int, float], seed: Any, offset: int, on_device: bool) -> Floats:
    """Return 100,000 numbers that a graph draws."""
    g, y = Graph(), Tensor(np.zeros((1, 2, 250, 200), np.float32))
    given = seed if isinstance(seed, int) and not on_device else g.whole(int(seed), on_device)
    g.random(g.given(y), distribution, numbers, given, g.whole(offset, on_device))
    assert (status := g.run()) == 0, status
    return y.get()


@case
def the_same_seed_and_offset_draw_the_same_numbers() -> str:
    kept = {2305: 0.7}
    first = drawn(BERNOULLI, kept, LARGE, 3, False)
    found = []
    if set(np.unique(first)) != {0, 1} or abs(first.mean() - 0.7) > 0.008:
        found.append(f"a mean of {first.mean()}")
    if not np.array_equal(first, drawn(BERNOULLI, kept, LARGE, 3, True)):
        found.append("a seed on the device draws others")
    for what, seed, offset in (("seed", LARGE - 1, 3), ("offset", LARGE, 4)):
        alike = float((first == drawn(BERNOULLI, kept, seed, offset, False)).mean())
        if abs(alike - (0.49 + 0.09)) > 0.01:  # of two independent ones
            found.append(f"with another {what} {alike} are the same")
    neighbours = float((first.ravel()[1:] == first.ravel()[:-1]).mean())
    if abs(neighbours - 0.58) > 0.01:
        found.append(f"neighbours: {neighbours}")
    return "; ".join(found)


@case
def uniform_and_normal_numbers_have_their_moments() -> str:
    flat = drawn(UNIFORM, {2304: -1, 2303: 3}, 5, 0, False).astype(np.float64)
    bell = drawn(NORMAL, {2301: 2, 2302: 0.5}, 5, 0, False).astype(np.float64)
    close = [
        (flat.min(), -1, 1e-3), (flat.max(), 3, 1e-3), (flat.mean(), 1, 0.02), (flat.std(), 4 / 12**0.5, 0.01),
        (bell.mean(), 2, 0.01), (bell.std(), 0.5, 0.01), (((bell - 2) ** 4).mean() / 0.5**4, 3, 0.15),
    ]  # fmt: skip
    return "; ".join(
        f"{got}, and not {wanted}" for got, wanted, within in close if abs(got - wanted) > within
    )


@case
def attention_with_dropout() -> str:
    """Multiply what softmax gives by a mask that the graph draws, and by 1 / (1 - 0.3)."""
    q, k, v = (numbers((2, 3, 40, 16), np.float32) for _ in range(3))
    scores = q.astype(np.float64) @ k.transpose(0, 1, 3, 2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    g, out, mask = (
        Graph(),
        Tensor(np.zeros(v.shape, np.float32)),
        Tensor(np.zeros((2, 3, 40, 40), np.float32)),
    )
    whole, column = (2, 3, 40, 40), (2, 3, 40, 1)
    scored, less, powers, shares, kept, grown = (g.between(*whole) for _ in range(6))
    largest, total = g.between(*column), g.between(*column)
    drawn_mask = g.given(mask)
    turned = Tensor(np.ascontiguousarray(k.transpose(0, 1, 3, 2)), (0, 1, 3, 2))
    g.matmul(g.given(Tensor(q)), g.given(turned), scored)
    g.reduction(LARGEST, scored, largest)
    g.pointwise(SUB, scored, less, largest)
    g.pointwise(EXP, less, powers)
    g.reduction(SUM, powers, total)
    g.pointwise(DIV, powers, shares, total)
    g.random(drawn_mask, BERNOULLI, {2305: 0.7}, g.whole(42), g.whole(0))
    g.pointwise(MUL, shares, kept, drawn_mask)
    g.pointwise(MUL, kept, grown, g.value(1 / 0.7, 4))
    g.matmul(grown, g.given(Tensor(v)), g.given(out))
    if status := g.run():
        return f"{status}"
    seen = mask.get()
    wanted = weights / weights.sum(-1, keepdims=True) * seen / 0.7 @ v
    return far(out.get(), wanted) or ("" if 0.6 < seen.mean() < 0.8 else f"{seen.mean()} are kept")


@case
def numbers_that_describe_no_distribution_are_refused() -> str:
    found = []
    for distribution, about in (
        (BERNOULLI, {2305: 1.5}),
        (BERNOULLI, {}),
        (UNIFORM, {2303: 0, 2304: 1}),
        (NORMAL, {2301: 0, 2302: -1}),
        (3, {2305: 0.5}),
    ):
        g, y = Graph(), Tensor(np.zeros((1, 1, 4, 4), np.float32))
        g.random(g.given(y), distribution, about, 1, g.whole(0))
        graph = g.n.node(15, {800: (HANDLE, g.n.handle), 801: (DESCRIPTOR, g.operations)}, finish=False)
        found.append(g.n.library.cudnnBackendFinalize(graph))
    return "" if found == [2000] * len(found) else f"{found}"


if __name__ == "__main__":
    CASES.main()
