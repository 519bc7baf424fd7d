"""Cases of cuDNN's connectionist temporal classification, against the sum over every path there is."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.native.libraries.cublas_cases import numbers
from tests.native.libraries.cudnn import DATA, Tensor
from tests.native.libraries.cudnn_call_cases import Calls, ints
from tests.native.libraries.device import Array, Cases

__all__ = ["CASES"]

CASES = Cases()
case = CASES.add

Floats = np.ndarray[Any, Any]
NONE, SOFTMAX = 0, 1
PROPAGATE_NAN, SKIP = 1, 100
STEPS, SYMBOLS = 5, 4
LABELS: list[list[int]] = [[1, 2], [3, 3], [], [2, 1, 2], [1], [2, 2, 2]]
LENGTHS = [5, 5, 4, 3, 0, 4]


def cost(activations: Floats, label: Sequence[int]) -> float:
    """Return minus the logarithm of a label's probability: that of every path which reads as the label."""
    chances = np.exp(activations - activations.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    steps = range(len(activations))
    whole = 0.0
    for path in itertools.product(range(SYMBOLS), repeat=len(activations)):
        if [k for k, _ in itertools.groupby(path) if k] == list(label):
            whole += float(np.prod([chances[t, path[t]] for t in steps]))
    return -np.log(whole) if whole else np.inf


def slope(activations: Floats, label: Sequence[int]) -> Floats:
    """Return how the cost changes with each activation, by differences."""
    found = np.zeros_like(activations)
    for at in np.ndindex(activations.shape):
        step = np.zeros_like(activations)
        step[at] = 1e-4
        found[at] = (cost(activations + step, label) - cost(activations - step, label)) / 2e-4
    return found


def wanted(x: Floats) -> tuple[Floats, Floats]:
    """Return the costs of `LABELS`, and the slopes, 0 behind a sequence's end and where nothing fits."""
    costs, slopes = np.zeros(len(LABELS)), np.zeros(x.shape)
    for i, (label, length) in enumerate(zip(LABELS, LENGTHS, strict=True)):
        costs[i] = cost(x[:length, i].astype(np.float64), label)
        if np.isfinite(costs[i]):
            slopes[:length, i] = slope(x[:length, i].astype(np.float64), label)
    return costs, slopes


def differs(got: Floats, expected: Floats, tolerance: float) -> str:
    good = np.allclose(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    return "" if good else f"{got.tolist()} instead of {expected.tolist()}"


class Losses(Calls):
    """A handle, activations on the device, and what goes with them."""

    def __init__(self, kind: Any = np.float32, order: Sequence[int] | None = None) -> None:
        super().__init__()
        self.x = numbers((STEPS, len(LABELS), SYMBOLS), kind) * 2
        self.at, self.slopes = (
            Tensor(self.x.astype(kind), order),
            Tensor(np.full(self.x.shape, 7, kind), order),
        )
        self.costs = Array(np.full(len(LABELS), 7, kind))
        self.labels = [k for label in LABELS for k in label]
        self.lengths = [len(label) for label in LABELS]

    def loss(self, normalization: int = SOFTMAX, gradients: int = 0) -> ctypes.c_void_p:
        """Return a descriptor."""
        return self.made("CTCLoss", "cudnnSetCTCLossDescriptorEx", 0, normalization, gradients)

    def run(self, how: ctypes.c_void_p, with_slopes: bool = True) -> int:
        """Compute with the labels on the host."""
        none = ctypes.c_void_p()
        size = ctypes.c_size_t(7)
        forms = self.layout(self.at), self.layout(self.slopes)
        host = ints(self.labels), ints(self.lengths), ints(LENGTHS)
        room = self.library.cudnnGetCTCLossWorkspaceSize(
            self.handle, forms[0], forms[1] if with_slopes else none, *host, 0, how, ctypes.byref(size)
        )
        assert (room, size.value) == (0, 0), (room, size.value)
        slopes = (forms[1], self.slopes.pointer) if with_slopes else (none, none)
        return int(
            self.library.cudnnCTCLoss(
                self.handle, forms[0], self.at.pointer, *host, self.costs.pointer, *slopes, 0, how, none, size
            )
        )


@case
def costs_and_slopes() -> str:
    for kind, tolerance in ((np.float32, 1e-4), (np.float64, 1e-6)):
        for order in (None, (1, 0, 2)):
            n = Losses(kind, order)
            if n.run(n.loss()):
                return "refused"
            costs, slopes = wanted(n.x)
            found = differs(n.costs.get(), costs, tolerance) or differs(n.slopes.get(), slopes, tolerance)
            if found:
                return f"{kind.__name__}, {order}: {found}"
    return ""


@case
def costs_alone() -> str:
    n = Losses()
    assert n.run(n.loss(), with_slopes=False) == 0
    return differs(n.costs.get(), wanted(n.x)[0], 1e-4) or differs(n.slopes.get(), np.full(n.x.shape, 7), 0)


@case
def probabilities_that_are_given_as_such() -> str:
    n = Losses()
    chances = np.exp(n.x)
    n.at = Tensor((chances / chances.sum(2, keepdims=True)).astype(np.float32))
    assert n.run(n.loss(NONE)) == 0
    costs, slopes = wanted(n.x)
    return differs(n.costs.get(), costs, 1e-4) or differs(n.slopes.get(), slopes, 1e-4)


@case
def slopes_of_what_nothing_fits_are_nan_where_they_are_asked_for() -> str:
    n = Losses()
    assert n.run(n.loss(gradients=PROPAGATE_NAN)) == 0
    slopes = wanted(n.x)[1]
    for i, length in enumerate(LENGTHS):
        if not np.isfinite(n.costs.get()[i]):
            slopes[:length, i] = np.nan
    return differs(n.slopes.get(), slopes, 1e-4)


@case
def labels_on_the_device() -> str:
    n = Losses()
    none, size = ctypes.c_void_p(), ctypes.c_size_t(7)
    how = n.made("CTCLoss", "cudnnSetCTCLossDescriptor_v9", 0, SOFTMAX, SKIP, 3)
    forms = n.layout(n.at), n.layout(n.slopes)
    room = n.library.cudnnGetCTCLossWorkspaceSize_v8(n.handle, 0, how, *forms, ctypes.byref(size))
    assert (room, size.value) == (0, 0)
    device = [Array(np.array(one, np.int32)) for one in (n.labels, n.lengths, LENGTHS)]
    n.done(
        "cudnnCTCLoss_v8",
        0,
        how,
        forms[0],
        n.at.pointer,
        *(one.pointer for one in device),
        n.costs.pointer,
        forms[1],
        n.slopes.pointer,
        ctypes.c_size_t(0),
        none,
    )
    costs, slopes = wanted(n.x)
    for i, length in enumerate(LENGTHS):
        slopes[length:, i] = 7  # left as they were
    return differs(n.costs.get(), costs, 1e-4) or differs(n.slopes.get(), slopes, 1e-4)


@case
def descriptors_say_what_they_were_given() -> str:
    n = Losses()
    how = n.made("CTCLoss", "cudnnSetCTCLossDescriptor_v9", 0, SOFTMAX, SKIP, 31)
    told = [ctypes.c_int(7) for _ in range(4)]
    assert n.library.cudnnGetCTCLossDescriptor_v9(how, *map(ctypes.byref, told)) == 0
    got = [one.value for one in told]
    wrong = (
        n.library.cudnnSetCTCLossDescriptorEx(how, DATA[np.float64], 0, 0),
        n.library.cudnnSetCTCLossDescriptorEx(how, 0, 2, 0),
    )
    return "" if (got, wrong) == ([0, SOFTMAX, SKIP, 31], (3000, 2000)) else f"{got}, {wrong}"


if __name__ == "__main__":
    CASES.main()
