"""Cases of cuDNN's recurrent layers: forward against NumPy, gradients against differences of NumPy's forward."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tests.native.libraries.cublas_cases import numbers
from tests.native.libraries.cudnn import DATA, Tensor
from tests.native.libraries.cudnn_call_cases import Calls, first, ints, slope_by_difference
from tests.native.libraries.device import Cases, close

__all__ = ["CASES"]

CASES = Cases()
case = CASES.add

Floats = np.ndarray[Any, Any]
RELU, TANH, LSTM, GRU = range(4)
GATES = {RELU: 1, TANH: 1, LSTM: 4, GRU: 3}


def sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def step(
    cell: int,
    x: Floats,
    h: Floats,
    c: Floats,
    w: list[Floats],
    r: list[Floats],
    bw: list[Floats],
    br: list[Floats],
) -> tuple[Floats, Floats]:
    """Return state and cell after one step of one sequence."""
    u = [a @ x + b for a, b in zip(w, bw, strict=True)]
    v = [a @ h + b for a, b in zip(r, br, strict=True)]
    if cell == LSTM:
        i, f, g, o = (a + b for a, b in zip(u, v, strict=True))
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c
    if cell == GRU:
        reset, update = sigmoid(u[0] + v[0]), sigmoid(u[1] + v[1])
        fresh = np.tanh(u[2] + reset * v[2])
        return (1 - update) * fresh + update * h, c
    both = u[0] + v[0]
    return (np.tanh(both) if cell == TANH else np.maximum(both, 0)), c


class Layers:
    """Recurrent layers on the device, and the same in NumPy."""

    def __init__(
        self,
        cell: int,
        kind: Any,
        layers: int,
        both: bool,
        biased: bool,
        lengths: list[int],
        batch_outside: bool,
    ) -> None:
        self.cell, self.kind, self.layers, self.lengths = cell, kind, layers, lengths
        self.directions, self.batch_outside, self.biased = (2 if both else 1), batch_outside, biased
        self.inputs, self.hidden, self.steps, self.batch = 3, 4, max(lengths), len(lengths)
        n = self.n = Calls()
        states = ctypes.c_size_t()
        n.done("cudnnDropoutGetStatesSize", ctypes.byref(states))
        kept = Tensor(np.zeros(max(states.value, 1), np.float32))
        dropout = ctypes.c_void_p()
        assert n.library.cudnnCreateDropoutDescriptor(ctypes.byref(dropout)) == 0
        status = n.library.cudnnSetDropoutDescriptor(
            dropout, n.handle, ctypes.c_float(0), kept.pointer, states, ctypes.c_ulonglong(1)
        )
        assert status == 0
        data = DATA[kind]
        self.form = n.made(
            "RNN", "cudnnSetRNNDescriptor_v8", 0, cell, 2 if biased else 0, int(both), 0, data, data, 0, self.inputs, self.hidden,
            self.hidden, layers, dropout, 1,
        )  # fmt: skip
        size = ctypes.c_size_t()
        n.done("cudnnGetRNNWeightSpaceSize", self.form, ctypes.byref(size))
        self.weights = numbers((size.value // np.dtype(kind).itemsize,), kind) / 2
        self.parts: dict[tuple[int, int], tuple[slice, tuple[int, int], slice]] = {}
        for layer in range(layers * self.directions):
            for number in range(2 * GATES[cell]):
                self.parts[layer, number] = self.part(layer, number)

    def part(self, layer: int, number: int) -> tuple[slice, tuple[int, int], slice]:
        """Return where a matrix and its bias stand among the weights, as the library says."""
        n = self.n
        m, b = ctypes.c_void_p(), ctypes.c_void_p()
        for one in (m, b):
            assert n.library.cudnnCreateTensorDescriptor(ctypes.byref(one)) == 0
        at = [ctypes.c_void_p(), ctypes.c_void_p()]
        n.done(
            "cudnnGetRNNWeightParams",
            self.form,
            layer,
            ctypes.c_size_t(0),
            None,
            number,
            m,
            ctypes.byref(at[0]),
            b,
            ctypes.byref(at[1]),
        )
        kind, rank, extents, strides = ctypes.c_int(), ctypes.c_int(), ints([0] * 3), ints([0] * 3)
        assert (
            n.library.cudnnGetTensorNdDescriptor(
                m, 3, ctypes.byref(kind), ctypes.byref(rank), extents, strides
            )
            == 0
        )
        assert rank.value == 3
        begin, bias = ((a.value or 0) // np.dtype(self.kind).itemsize for a in at)
        rows, columns = extents[1], extents[2]
        return slice(begin, begin + rows * columns), (rows, columns), slice(bias, bias + rows)

    def right(self, weights: Floats, x: Floats, hx: Floats, cx: Floats) -> Floats:
        """Return y, hy and cy in one row, in double precision."""
        gates, none = GATES[self.cell], np.zeros(self.hidden)
        seen = x.astype(np.float64)
        hy, cy = np.zeros(hx.shape), np.zeros(cx.shape)
        for level in range(self.layers):
            out = np.zeros((self.steps, self.batch, self.hidden * self.directions))
            for d in range(self.directions):
                layer = level * self.directions + d
                matrices = [
                    weights[self.parts[layer, i][0]].reshape(self.parts[layer, i][1])
                    for i in range(2 * gates)
                ]
                biases = [weights[self.parts[layer, i][2]] if self.biased else none for i in range(2 * gates)]
                for row, length in enumerate(self.lengths):
                    h, c = hx[layer, row].astype(np.float64), cx[layer, row].astype(np.float64)
                    for t in range(length)[:: -1 if d else 1]:
                        h, c = step(
                            self.cell,
                            seen[t, row],
                            h,
                            c,
                            matrices[:gates],
                            matrices[gates:],
                            biases[:gates],
                            biases[gates:],
                        )
                        out[t, row, d * self.hidden : (d + 1) * self.hidden] = h
                    hy[layer, row], cy[layer, row] = h, c
            seen = out
        return np.concatenate([seen.ravel(), hy.ravel(), cy.ravel() if self.cell == LSTM else []])

    def check(self) -> str:
        n, kind = self.n, self.kind
        shape = (self.layers * self.directions, self.batch, self.hidden)
        order = (1, 0, 2) if self.batch_outside else None
        x, hx, cx = (
            numbers((self.steps, self.batch, self.inputs), kind),
            numbers(shape, kind),
            numbers(shape, kind),
        )
        y_shape = (self.steps, self.batch, self.hidden * self.directions)
        dy, dhy, dcy = numbers(y_shape, kind), numbers(shape, kind), numbers(shape, kind)
        zero = np.zeros(1, kind)

        def sequences(width: int) -> ctypes.c_void_p:
            return n.made(
                "RNNData", "cudnnSetRNNDataDescriptor", DATA[kind], 2 if self.batch_outside else 0, self.steps, self.batch, width,
                ints(self.lengths), ctypes.c_void_p(zero.ctypes.data),
            )  # fmt: skip

        x_form, y_form = sequences(self.inputs), sequences(y_shape[2])
        on_x, on_y, on_dy, on_dx = (
            Tensor(a, order) for a in (x, np.ones(y_shape, kind), dy, np.ones(x.shape, kind))
        )
        states = [
            Tensor(a)
            for a in (
                hx,
                cx,
                np.ones(shape, kind),
                np.ones(shape, kind),
                dhy,
                dcy,
                np.ones(shape, kind),
                np.ones(shape, kind),
            )
        ]
        h, c, hy, cy, on_dhy, on_dcy, dhx, dcx = states
        layout, weights = n.layout(h), Tensor(self.weights)
        dweights = Tensor(np.ones_like(self.weights))
        work, reserve = ctypes.c_size_t(), ctypes.c_size_t()
        room = ctypes.c_size_t(weights.bytes)

        def space(mode: int) -> tuple[Any, ...]:
            n.done(
                "cudnnGetRNNTempSpaceSizes",
                self.form,
                mode,
                x_form,
                ctypes.byref(work),
                ctypes.byref(reserve),
            )
            a, b = (Tensor(np.full(max(size.value, 8) // 8, np.nan)) for size in (work, reserve))
            return ctypes.c_size_t(work.value), a.pointer, ctypes.c_size_t(reserve.value), b.pointer

        lengths = Tensor(np.array(self.lengths, np.int32).view(np.float32))

        def forward(mode: int, spaces: tuple[Any, ...]) -> str:
            n.done(
                "cudnnRNNForward", self.form, mode, lengths.pointer, x_form, on_x.pointer, y_form, on_y.pointer, layout, h.pointer, hy.pointer,
                layout, c.pointer, cy.pointer, room, weights.pointer, *spaces,
            )  # fmt: skip
            got = np.concatenate(
                [a.get().ravel() for a in ([on_y, hy, cy] if self.cell == LSTM else [on_y, hy])]
            )
            return close(got, self.right(self.weights.astype(np.float64), x, hx, cx), kind, 30)

        if found := forward(0, space(0)):
            return f"inference: {found}"
        spaces = space(1)
        if found := forward(1, spaces):
            return f"training: {found}"
        n.done(
            "cudnnRNNBackwardData_v8", self.form, lengths.pointer, y_form, on_y.pointer, on_dy.pointer, x_form, on_dx.pointer, layout, h.pointer,
            on_dhy.pointer, dhx.pointer, layout, c.pointer, on_dcy.pointer, dcx.pointer, room, weights.pointer, *spaces,
        )  # fmt: skip
        n.done(
            "cudnnRNNBackwardWeights_v8", self.form, 0, lengths.pointer, x_form, on_x.pointer, layout, h.pointer, y_form, on_y.pointer, room,
            dweights.pointer, *spaces,
        )  # fmt: skip
        slopes = np.concatenate([dy.ravel(), dhy.ravel(), dcy.ravel() if self.cell == LSTM else []]).astype(
            np.float64
        )
        inside = np.array([[t < length for length in self.lengths] for t in range(self.steps)])[..., None]
        slopes[: dy.size] *= np.broadcast_to(inside, dy.shape).ravel()
        w, x, hx, cx = (a.astype(np.float64) for a in (self.weights, x, hx, cx))
        wanted = {
            "x": (on_dx.get(), slope_by_difference(lambda v: self.right(w, v, hx, cx), x, slopes)),
            "hx": (dhx.get(), slope_by_difference(lambda v: self.right(w, x, v, cx), hx, slopes)),
            "weights": (
                dweights.get() - 1,
                slope_by_difference(lambda v: self.right(v, x, hx, cx), w, slopes),
            ),
        }
        if self.cell == LSTM:
            wanted["cx"] = (dcx.get(), slope_by_difference(lambda v: self.right(w, x, hx, v), cx, slopes))
        return first(
            (f"gradient to {name}", close(got, right, np.float32, 30))
            for name, (got, right) in wanted.items()
        )


def check(
    cell: int,
    kind: Any = np.float64,
    layers: int = 1,
    both: bool = False,
    biased: bool = True,
    lengths: Any = (3, 3),
    batch_outside: bool = False,
) -> str:
    return Layers(cell, kind, layers, both, biased, list(lengths), batch_outside).check()


@case
def every_cell_in_one_layer() -> str:
    return first(
        (f"cell {cell}, {kind.__name__}", check(cell, kind))
        for cell in GATES
        for kind in (np.float32, np.float64)
    )


@case
def two_layers_in_both_directions() -> str:
    return first((f"cell {cell}", check(cell, layers=2, both=True)) for cell in (TANH, LSTM, GRU))


@case
def sequences_of_different_lengths() -> str:
    return first(
        (f"cell {cell}", check(cell, both=True, lengths=(4, 1, 2), batch_outside=True))
        for cell in (LSTM, GRU)
    )


@case
def layers_without_biases() -> str:
    return first((f"cell {cell}", check(cell, biased=False, batch_outside=True)) for cell in (LSTM, GRU))


if __name__ == "__main__":
    CASES.main()
