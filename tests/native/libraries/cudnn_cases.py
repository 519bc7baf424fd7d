"""Cases of cuDNN against NumPy: the backend API, and the functions outside of it."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.native.libraries.cublas_cases import BFLOAT, HALF, numbers
from tests.native.libraries.cudnn import DESCRIPTOR, DOUBLE, FLOAT, INT64, TYPE, Cudnn, Tensor
from tests.native.libraries.device import Cases, close, forwarded
from tests.real_gpu import REAL

__all__ = ["CASES", "convolved", "to_data", "to_filter"]

CASES = Cases()
case = CASES.add

Floats = np.ndarray[Any, Any]


def last(rank: int) -> tuple[int, ...]:
    """Return the order of dimensions in which channels are the innermost."""
    return (0, *range(2, rank), 1)


# --- what is right, by NumPy ---


def _taps(w: Floats) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(n) for n in w.shape[2:])))


def _seen(x: Floats, tap: Sequence[int], out: Sequence[int], p: dict[str, Any]) -> tuple[slice, ...]:
    return tuple(
        slice(t * d, t * d + (n - 1) * s + 1, s)
        for t, d, n, s in zip(tap, p["dilation"], out, p["stride"], strict=True)
    )


def _padded(x: Floats, p: dict[str, Any]) -> Floats:
    return np.pad(x, [(0, 0), (0, 0), *zip(p["before"], p["after"], strict=True)])


def _outputs(x: Floats, w: Floats, p: dict[str, Any]) -> list[int]:
    return [
        (n + b + a - d * (k - 1) - 1) // s + 1
        for n, k, b, a, d, s in zip(
            x.shape[2:], w.shape[2:], p["before"], p["after"], p["dilation"], p["stride"], strict=True
        )
    ]


def convolved(x: Floats, w: Floats, p: dict[str, Any]) -> Floats:
    """Return the cross-correlation of `x` with the filter `w`, in as many groups as fit, in double precision."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    groups = x.shape[1] // w.shape[1]
    out = _outputs(x, w, p)
    padded = _padded(x, p).reshape(x.shape[0], groups, w.shape[1], *_padded(x, p).shape[2:])
    filters = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    y = np.zeros((x.shape[0], groups, w.shape[0] // groups, *out))
    for tap in _taps(w):
        part = padded[(slice(None), slice(None), slice(None), *_seen(x, tap, out, p))]
        y += np.einsum("ngc...,gkc->ngk...", part, filters[(Ellipsis, *tap)])
    return y.reshape(x.shape[0], w.shape[0], *out)


def to_filter(x: Floats, dy: Floats, shape: Sequence[int], p: dict[str, Any]) -> Floats:
    """Return the gradient to the filter."""
    x, dy = x.astype(np.float64), dy.astype(np.float64)
    groups = x.shape[1] // shape[1]
    padded = _padded(x, p).reshape(x.shape[0], groups, shape[1], *_padded(x, p).shape[2:])
    slopes = dy.reshape(x.shape[0], groups, shape[0] // groups, -1)
    dw = np.zeros((groups, shape[0] // groups, *shape[1:]))
    for tap in itertools.product(*(range(n) for n in shape[2:])):
        part = padded[(slice(None), slice(None), slice(None), *_seen(x, tap, dy.shape[2:], p))]
        part = part.reshape(x.shape[0], groups, shape[1], -1)
        dw[(Ellipsis, *tap)] = np.einsum("ngcp,ngkp->gkc", part, slopes)
    return dw.reshape(shape)


def to_data(shape: Sequence[int], w: Floats, dy: Floats, p: dict[str, Any]) -> Floats:
    """Return the gradient to the data."""
    w, dy = w.astype(np.float64), dy.astype(np.float64)
    groups = shape[1] // w.shape[1]
    dx = np.zeros(
        (
            shape[0],
            groups,
            w.shape[1],
            *(n + b + a for n, b, a in zip(shape[2:], p["before"], p["after"], strict=True)),
        )
    )
    filters = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    slopes = dy.reshape(shape[0], groups, w.shape[0] // groups, *dy.shape[2:])
    for tap in _taps(w):
        seen = (slice(None), slice(None), slice(None), *_seen(dx, tap, dy.shape[2:], p))
        dx[seen] += np.einsum("ngk...,gkc->ngc...", slopes, filters[(Ellipsis, *tap)])
    dx = dx.reshape(shape[0], shape[1], *dx.shape[3:])
    return dx[
        (slice(None), slice(None), *(slice(b, b + n) for b, n in zip(p["before"], shape[2:], strict=True)))
    ]


# --- the backend API ---

KINDS = {
    "forward": (10, 702, 704, 703, 705),
    "data": (12, 708, 710, 709, 711),
    "filter": (11, 714, 716, 715, 717),
}
"""By direction: the operation, and its attributes for the convolution, x, w and y; alpha and beta come before the first."""


def parameters(spatial: int, **given: Any) -> dict[str, Any]:
    """Return strides, dilations and paddings; a number stands for all dimensions."""
    usual = {"before": 0, "after": given.get("before", 0), "stride": 1, "dilation": 1, **given}
    return {k: [v] * spatial if isinstance(v, int) else list(v) for k, v in usual.items()}


def operation(
    n: Cudnn,
    direction: str,
    tensors: Sequence[Any],
    p: dict[str, Any],
    kind: Any,
    mode: int = 1,
    alpha: float = 1,
    beta: float = 0,
) -> ctypes.c_void_p:
    """Return the operation of a convolution of descriptors x, w, y."""
    spatial = len(p["stride"])
    number, of, *names = KINDS[direction]
    compute = 1 if kind is np.float64 else 0
    how = n.node(
        1,
        {
            100: (TYPE, compute), 101: (7, mode), 106: (INT64, spatial), 102: (INT64, p["dilation"]),
            103: (INT64, p["stride"]), 105: (INT64, p["before"]), 104: (INT64, p["after"]),
        },
    )  # fmt: skip
    real = DOUBLE if compute else FLOAT
    factors = {of - 2: (real, float(alpha)), of - 1: (real, float(beta))}
    used = {name: (DESCRIPTOR, tensor) for name, tensor in zip(names, tensors, strict=True)}
    return n.node(number, {**factors, of: (DESCRIPTOR, how), **used})


def convolution(
    direction: str,
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    kind: Any = np.float32,
    channels_last: bool = False,
    mode: int = 1,
    alpha: float = 1,
    beta: float = 0,
    **given: Any,
) -> str:
    """Return what is wrong with one convolution."""
    n = Cudnn()
    p = parameters(len(x_shape) - 2, **given)
    order = last(len(x_shape)) if channels_last else None
    x, w = numbers(x_shape, kind), numbers(w_shape, kind)
    y = numbers((x_shape[0], w_shape[0], *_outputs(x, w, p)), kind)
    turned = w[(slice(None), slice(None), *([slice(None, None, -1)] * (w.ndim - 2)))] if mode == 0 else w
    if direction == "forward":
        wanted, terms = convolved(x, turned, p), math.prod(w.shape[1:])
    elif direction == "data":
        wanted, terms = to_data(x.shape, turned, y, p), w.shape[0] * math.prod(w.shape[2:])
    else:
        wanted, terms = to_filter(x, y, w.shape, p), x.shape[0] * math.prod(y.shape[2:])
        if mode == 0:
            wanted = wanted[(slice(None), slice(None), *([slice(None, None, -1)] * (w.ndim - 2)))]
    place = {"forward": 2, "data": 0, "filter": 1}[direction]
    wanted = alpha * wanted + (beta * (x, w, y)[place].astype(np.float64) if beta else 0)
    on_device = [Tensor(one, order) for one in (x, w, y)]
    described = [n.of(one) for one in on_device]
    made = operation(n, direction, [d for d, _ in described], p, kind, mode, alpha, beta)
    plan = n.plan([made])
    status = n.run(plan, {number: t.address for (_, number), t in zip(described, on_device, strict=True)})
    return f"status {status}" if status else close(on_device[place].get(), wanted, kind, terms)


def first(findings: Any) -> str:
    """Return the first finding that is not empty."""
    return next((f"{name}: {finding}" for name, finding in findings if finding), "")


def each_direction(*shapes: Any, **given: Any) -> str:
    return first(
        (
            f"{direction}, channels_last={channels_last}",
            convolution(direction, *shapes, channels_last=channels_last, **given),
        )
        for direction in KINDS
        for channels_last in (False, True)
    )


@case
def convolutions_in_two_dimensions() -> str:
    return each_direction((3, 8, 13, 11), (12, 8, 3, 3), before=1)


@case
def strides_and_paddings_that_differ() -> str:
    return each_direction((2, 5, 17, 14), (6, 5, 3, 4), before=(1, 2), after=(0, 3), stride=(2, 3))


@case
def dilated_convolutions() -> str:
    return each_direction((2, 4, 15, 16), (6, 4, 3, 2), before=2, stride=2, dilation=(2, 3))


@case
def grouped_and_depthwise_convolutions() -> str:
    return each_direction((2, 12, 9, 9), (6, 4, 3, 3), before=1) or each_direction(
        (2, 16, 9, 9), (16, 1, 3, 3), before=1, stride=2
    )


@case
def convolutions_in_one_and_three_dimensions() -> str:
    return each_direction((3, 6, 50), (8, 6, 5), before=2, stride=2) or each_direction(
        (2, 4, 6, 7, 8), (5, 4, 2, 3, 3), before=1, stride=(1, 2, 1)
    )


@case
def convolutions_of_other_types() -> str:
    return first(
        (kind.__name__, each_direction((2, 8, 10, 9), (8, 8, 3, 3), kind=kind, before=1))
        for kind in (np.float64, HALF, BFLOAT)
    )


@case
def convolutions_that_turn_the_filter() -> str:
    return each_direction((2, 3, 8, 8), (4, 3, 3, 2), mode=0, before=1)


@case
def alpha_and_beta() -> str:
    return each_direction((2, 3, 8, 8), (4, 3, 3, 3), alpha=0.5, beta=2.0)


@case
def many_channels_and_many_places() -> str:
    return each_direction((2, 96, 20, 20), (320, 96, 3, 3), before=1) or each_direction(
        (1, 3, 150, 150), (40, 3, 7, 7), stride=2, before=3
    )


def fused(alpha: float, absent: bool) -> str:
    """Return what is wrong with a convolution to which `alpha` times another tensor and a bias are added, rectified."""
    n = Cudnn()
    p = parameters(2, before=1)
    x, w, b, z = (numbers(s, np.float32) for s in ((2, 6, 9, 9), (8, 6, 3, 3), (1, 8, 1, 1), (2, 8, 9, 9)))
    y = np.zeros((2, 8, 9, 9), np.float32)
    wanted = np.maximum(convolved(x, w, p) + alpha * z + b, 0)
    tensors = [Tensor(one, last(4)) for one in (x, w, b, z, y)]
    (dx, ix), (dw, iw), (db, ib), (dz, iz), (dy, iy) = (n.of(t) for t in tensors)
    virtual = [n.tensor(y.shape, tensors[4].strides, np.float32, virtual=True)[0] for _ in range(3)]

    def pointwise(mode: int, **names: Any) -> ctypes.c_void_p:
        how = n.node(0, {0: (14, mode), 1: (TYPE, 0)})
        numbers_of = {"x": 751, "b": 752, "y": 753}
        return n.node(
            13,
            {750: (DESCRIPTOR, how), **{numbers_of[k]: (DESCRIPTOR, v) for k, v in names.items() if k in numbers_of},
             754: (FLOAT, 1.0), 755: (FLOAT, names.get("alpha2", 1.0))},
        )  # fmt: skip

    operations = [
        pointwise(100, x=virtual[2], y=dy),  # in no order
        operation(n, "forward", (dx, dw, virtual[0]), p, np.float32),
        pointwise(0, x=virtual[1], b=db, y=virtual[2]),
        pointwise(0, x=virtual[0], b=dz, y=virtual[1], alpha2=alpha),
    ]
    plan = n.plan(operations)
    where = {ix: tensors[0], iw: tensors[1], ib: tensors[2], iz: tensors[3], iy: tensors[4]}
    status = n.run(plan, {k: 0 if absent and k == iz else t.address for k, t in where.items()})
    return f"status {status}" if status else close(tensors[4].get(), wanted, np.float32, 54)


@case
def a_convolution_with_bias_and_rectifier() -> str:
    return fused(0.5, absent=False)


@case
def an_operand_with_the_factor_0_may_be_nowhere() -> str:
    if found := fused(0, absent=True):
        return found
    try:
        return "" if fused(0.5, absent=True) else "it was read"
    except AssertionError:  # on a slice the next call that waits says so
        return ""


@case
def pointwise_operations_with_a_number_by_value_and_a_reduction() -> str:
    n = Cudnn()
    x = numbers((3, 8, 4, 6), np.float32)
    tensors = [Tensor(one, last(4)) for one in (x, np.zeros((1, 8, 1, 1), np.float32))]
    (dx, ix), (dy, iy) = (n.of(t) for t in tensors)
    two, number = n.tensor((1, 1, 1, 1), (1, 1, 1, 1), np.float32, by_value=True)
    between = n.tensor(x.shape, tensors[0].strides, np.float32, virtual=True)[0]
    multiply = n.node(0, {0: (14, 1), 1: (TYPE, 0)})
    summed = n.node(21, {1600: (18, 0), 1601: (TYPE, 0)})
    plan = n.plan(
        [
            n.node(
                13,
                {
                    750: (DESCRIPTOR, multiply),
                    751: (DESCRIPTOR, dx),
                    752: (DESCRIPTOR, two),
                    753: (DESCRIPTOR, between),
                },
            ),
            n.node(22, {1612: (DESCRIPTOR, summed), 1610: (DESCRIPTOR, between), 1611: (DESCRIPTOR, dy)}),
        ]
    )
    value = ctypes.c_float(2.5)
    status = n.run(plan, {ix: tensors[0].address, iy: tensors[1].address, number: ctypes.addressof(value)})
    wanted = 2.5 * x.astype(np.float64).sum((0, 2, 3), keepdims=True)
    return f"status {status}" if status else close(tensors[1].get(), wanted, np.float32, 72)


@case
def a_descriptor_outlives_the_programs_own() -> str:
    """The program destroys what a plan refers to, and runs the plan."""
    n = Cudnn()
    p = parameters(2)
    x, w = numbers((1, 2, 4, 4), np.float32), numbers((3, 2, 2, 2), np.float32)
    tensors = [Tensor(one) for one in (x, w, np.zeros((1, 3, 3, 3), np.float32))]
    described = [n.of(t) for t in tensors]
    made = operation(n, "forward", [d for d, _ in described], p, np.float32)
    plan = n.plan([made])
    for one in (made, *(d for d, _ in described)):
        if n.library.cudnnBackendDestroyDescriptor(one):
            return "a descriptor was not destroyed"
    if (forwarded() or not REAL) and not n.library.cudnnBackendDestroyDescriptor(made):
        return "a descriptor was destroyed twice"
    status = n.run(plan, {number: t.address for (_, number), t in zip(described, tensors, strict=True)})
    return f"status {status}" if status else close(tensors[2].get(), convolved(x, w, p), np.float32, 8)


@CASES.not_native
def what_is_not_understood_is_refused() -> str:
    n = Cudnn()
    tensors = [Tensor(numbers((1, 4, 4, 4), np.float32)) for _ in range(2)]
    dx, dy = (n.of(t)[0] for t in tensors)
    how = n.node(0, {0: (14, 502), 1: (TYPE, 0)})
    made = n.node(13, {750: (DESCRIPTOR, how), 751: (DESCRIPTOR, dx), 753: (DESCRIPTOR, dy)})
    graph = n.node(15, {800: (0, n.handle), 801: (DESCRIPTOR, made)}, finish=False)
    status = n.library.cudnnBackendFinalize(graph)
    if status != 3000 and not (REAL and status):  # where NVIDIA's library says what it does not know
        return f"a mode that is not there: {status}"
    what = ctypes.create_string_buffer(512)
    n.library.cudnnGetLastErrorString(what, ctypes.c_size_t(512))
    if n.library.cudnnBackendCreateDescriptor(4711, ctypes.byref(ctypes.c_void_p())) != 3000:
        return "a kind that does not exist"
    return ""


if __name__ == "__main__":
    CASES.main()
