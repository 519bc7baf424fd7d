"""Cases of cuDNN's functions outside of the backend API, against NumPy."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.native.libraries.cublas_cases import BFLOAT, HALF, numbers
from tests.native.libraries.cudnn import DATA, Cudnn, Tensor
from tests.native.libraries.cudnn_cases import convolved, last, parameters, to_data, to_filter
from tests.native.libraries.device import Cases, close
from tests.real_gpu import REAL

__all__ = ["CASES"]

CASES = Cases()
case = CASES.add

Floats = np.ndarray[Any, Any]
NOT_SUPPORTED = 3000


def ints(values: Sequence[int]) -> Any:
    return (ctypes.c_int * len(values))(*values)


class Calls(Cudnn):
    """Descriptors of tensors, filters and operations."""

    def made(self, kind: str, setter: str, *arguments: Any) -> ctypes.c_void_p:
        """Return a descriptor of a kind, filled by a function."""
        descriptor = ctypes.c_void_p()
        assert getattr(self.library, f"cudnnCreate{kind}Descriptor")(ctypes.byref(descriptor)) == 0
        status = getattr(self.library, setter)(descriptor, *arguments)
        assert status == 0, f"{setter}: {status}"
        return descriptor

    def layout(self, tensor: Tensor) -> ctypes.c_void_p:
        """Return the descriptor of a tensor."""
        rank = len(tensor.shape)
        return self.made(
            "Tensor",
            "cudnnSetTensorNdDescriptor",
            DATA[tensor.kind],
            rank,
            ints(tensor.shape),
            ints(tensor.strides),
        )

    def both(self, tensor: Tensor) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        """Return descriptor and address."""
        return self.layout(tensor), tensor.pointer


def real(value: float, kind: Any = np.float32) -> Any:
    """Return alpha or beta beside a tensor of `kind`."""
    return ctypes.byref(ctypes.c_double(value) if kind is np.float64 else ctypes.c_float(value))


def first(findings: Any) -> str:
    return next((f"{name}: {finding}" for name, finding in findings if finding), "")


def room(size: int) -> ctypes.c_void_p | None:
    """Return a workspace of so many bytes; None for none."""
    return Tensor(np.zeros(size, np.int8)).pointer if size else None


@case
def convolutions_by_their_functions() -> str:
    def one(kind: Any, channels_last: bool) -> str:
        n, p = Calls(), parameters(2, before=1, stride=(1, 2), dilation=(2, 1))
        order = last(4) if channels_last else None
        x, w = numbers((2, 8, 9, 10), kind), numbers((6, 4, 3, 3), kind)
        y = numbers(convolved(x, w, p).shape, kind)
        how = n.made(
            "Convolution",
            "cudnnSetConvolution2dDescriptor",
            1,
            1,
            1,
            2,
            2,
            1,
            1,
            1 if kind is np.float64 else 0,
        )
        assert n.library.cudnnSetConvolutionGroupCount(how, 2) == 0
        tensors = [Tensor(a, order) for a in (x, w, y)]
        layouts = [n.layout(tensors[0]), None, n.layout(tensors[2])]
        filters = n.made("Filter", "cudnnSetFilter4dDescriptor", DATA[kind], int(channels_last), 6, 4, 3, 3)
        a, b = real(2, kind), real(0.5, kind)
        spaces = []
        for direction, given in (
            ("Forward", (layouts[0], filters, how, layouts[2])),
            ("BackwardData", (filters, layouts[2], how, layouts[0])),
            ("BackwardFilter", (layouts[0], layouts[2], how, filters)),
        ):
            size = ctypes.c_size_t(77)
            status = n(f"cudnnGetConvolution{direction}WorkspaceSize", *given, 1, ctypes.byref(size))
            if REAL and status == NOT_SUPPORTED and kind is not np.float32:
                return ""  # NVIDIA's library has no such algorithm for each type and order
            assert status == 0, f"{direction}: {status}"
            assert REAL or size.value == 0
            spaces.append((room(size.value), size))
        n.done(
            "cudnnConvolutionForward",
            a,
            layouts[0],
            tensors[0].pointer,
            filters,
            tensors[1].pointer,
            how,
            1,
            *spaces[0],
            b,
            layouts[2],
            tensors[2].pointer,
        )
        forward = close(tensors[2].get(), 2 * convolved(x, w, p) + 0.5 * y.astype(np.float64), kind, 36)
        dy = Tensor(y, order)
        n.done(
            "cudnnConvolutionBackwardData",
            a,
            filters,
            tensors[1].pointer,
            layouts[2],
            dy.pointer,
            how,
            1,
            *spaces[1],
            b,
            layouts[0],
            tensors[0].pointer,
        )
        data = close(tensors[0].get(), 2 * to_data(x.shape, w, y, p) + 0.5 * x.astype(np.float64), kind, 36)
        fresh = Tensor(x, order)
        n.done(
            "cudnnConvolutionBackwardFilter",
            a,
            layouts[0],
            fresh.pointer,
            layouts[2],
            dy.pointer,
            how,
            1,
            *spaces[2],
            b,
            filters,
            tensors[1].pointer,
        )
        return (
            forward
            or data
            or close(tensors[1].get(), 2 * to_filter(x, y, w.shape, p) + 0.5 * w.astype(np.float64), kind, 90)
        )

    return first(
        (f"{k.__name__} {c}", one(k, c))
        for k in (np.float32, np.float64, HALF, BFLOAT)
        for c in (False, True)
    )


class Performance(ctypes.Structure):
    """cudnnConvolutionFwdAlgoPerf_t and its like."""

    _fields_ = (
        ("algorithm", ctypes.c_int), ("status", ctypes.c_int), ("time", ctypes.c_float), ("memory", ctypes.c_size_t),
        ("determinism", ctypes.c_int), ("math", ctypes.c_int), ("reserved", ctypes.c_int * 3),
    )  # fmt: skip


@case
def an_algorithm_is_found_for_each_direction() -> str:
    n = Calls()
    x, y = (n.layout(Tensor(np.zeros(s, np.float32))) for s in ((2, 3, 7, 7), (2, 5, 7, 7)))
    w = n.made("Filter", "cudnnSetFilter4dDescriptor", 0, 0, 5, 3, 3, 3)
    how = n.made("Convolution", "cudnnSetConvolution2dDescriptor", 1, 1, 1, 1, 1, 1, 1, 0)
    for name, given in (
        ("Forward", (x, w, how, y)),
        ("BackwardData", (w, y, how, x)),
        ("BackwardFilter", (x, y, how, w)),
    ):
        found, count = (Performance * 3)(), ctypes.c_int(7)
        if n(
            f"cudnnGetConvolution{name}Algorithm_v7", *given, 3, ctypes.byref(count), found
        ) or not 1 <= count.value <= (3 if REAL else 1):
            return f"{name}: {count.value} algorithms"
        size = ctypes.c_size_t()
        n.done(f"cudnnGetConvolution{name}WorkspaceSize", *given, found[0].algorithm, ctypes.byref(size))
        if found[0].status or found[0].memory != size.value:
            return f"{name}: {found[0].memory} bytes"
    wrong = n.made("Convolution", "cudnnSetConvolution2dDescriptor", 0, 0, 1, 1, 1, 1, 1, 0)
    if (
        not n("cudnnGetConvolutionForwardAlgorithm_v7", x, w, wrong, y, 3, ctypes.byref(count), found)
        or count.value
    ):
        return "an algorithm for tensors that do not fit together"
    return ""


@case
def a_convolution_with_bias_and_activation() -> str:
    n, p = Calls(), parameters(2, before=1)
    x, w, b, z = (numbers(s, np.float32) for s in ((2, 3, 7, 7), (5, 3, 3, 3), (1, 5, 1, 1), (2, 5, 7, 7)))
    tensors = [Tensor(a) for a in (x, w, b, z, np.zeros_like(z))]
    how = n.made("Convolution", "cudnnSetConvolution2dDescriptor", 1, 1, 1, 1, 1, 1, 1, 0)
    filters = n.made("Filter", "cudnnSetFilter4dDescriptor", 0, 0, 5, 3, 3, 3)
    relu = n.made("Activation", "cudnnSetActivationDescriptor", 1, 0, ctypes.c_double(0))
    size = ctypes.c_size_t()
    given = (n.layout(tensors[0]), filters, how, n.layout(tensors[4]))
    n.done("cudnnGetConvolutionForwardWorkspaceSize", *given, 1, ctypes.byref(size))
    n.done(
        "cudnnConvolutionBiasActivationForward", real(2), *n.both(tensors[0]), filters, tensors[1].pointer, how, 1, room(size.value),
        size, real(0.5), *n.both(tensors[3]), *n.both(tensors[2]), relu, *n.both(tensors[4]),
    )  # fmt: skip
    wanted = np.maximum(2 * convolved(x, w, p) + 0.5 * z + b, 0)
    slope = Tensor(np.zeros_like(b))
    n.done("cudnnConvolutionBackwardBias", real(1), *n.both(tensors[3]), real(0), *n.both(slope))
    return close(tensors[4].get(), wanted, np.float32, 27) or close(
        slope.get(), z.astype(np.float64).sum((0, 2, 3), keepdims=True), np.float32, 98
    )


def windows(shape: Sequence[int], out: Sequence[int], size: int, stride: int, pad: int) -> Any:
    for place in itertools.product(*(range(k) for k in out)):
        yield (
            place,
            tuple(
                slice(max(i * stride - pad, 0), min(i * stride - pad + size, k))
                for i, k in zip(place, shape, strict=True)
            ),
        )


@case
def pooling_forward_and_backward() -> str:
    def one(mode: int, shape: Sequence[int], kind: Any, channels_last: bool) -> str:
        n, size, stride, pad = Calls(), 3, 2, 1
        order = last(len(shape)) if channels_last else None
        x = numbers(shape, kind)
        spatial = len(shape) - 2
        out = [(k + 2 * pad - size) // stride + 1 for k in shape[2:]]
        y, dy = np.zeros((*shape[:2], *out)), numbers((*shape[:2], *out), kind)
        dx = np.zeros(shape)
        for place, window in windows(shape[2:], out, size, stride, pad):
            part, at = (
                x[(slice(None), slice(None), *window)].astype(np.float64),
                (slice(None), slice(None), *place),
            )
            flat, slope = part.reshape(*shape[:2], -1), dy[at].astype(np.float64)
            if mode == 0:
                y[at] = flat.max(-1)
                share = (np.arange(flat.shape[-1]) == flat.argmax(-1)[..., None]) * slope[..., None]
            else:
                terms = size**spatial
                if mode == 2:
                    terms = flat.shape[-1]
                else:  # what lies beyond the padding is no part of a window
                    for i, k in zip(place, shape[2:], strict=True):
                        terms = terms // size * (min(i * stride - pad + size, k + pad) - (i * stride - pad))
                y[at] = flat.sum(-1) / terms
                share = np.broadcast_to(slope[..., None] / terms, flat.shape)
            dx[(slice(None), slice(None), *window)] += share.reshape(part.shape)
        how = n.made(
            "Pooling",
            "cudnnSetPoolingNdDescriptor",
            mode,
            1,
            spatial,
            *(ints([v] * spatial) for v in (size, pad, stride)),
        )
        found = ints([0] * len(shape))
        on = [Tensor(a, order) for a in (x, np.zeros(y.shape, kind), dy, np.zeros(shape, kind))]
        assert n.library.cudnnGetPoolingNdForwardOutputDim(how, n.layout(on[0]), len(shape), found) == 0
        if list(found) != list(y.shape):
            return f"a result of {list(found)}"
        a, b = real(1, kind), real(0, kind)
        n.done("cudnnPoolingForward", how, a, *n.both(on[0]), b, *n.both(on[1]))
        n.done(
            "cudnnPoolingBackward", how, a, *n.both(on[1]), *n.both(on[2]), *n.both(on[0]), b, *n.both(on[3])
        )
        return close(on[1].get(), y, kind, 4) or close(on[3].get(), dx, kind, 8)

    shapes = ((2, 3, 9, 8), (1, 2, 6, 7, 5))
    return first(
        (f"mode {mode} of {shape} {kind.__name__}", one(mode, shape, kind, channels))
        for mode in (0, 1, 2)
        for shape, kind, channels in (
            (shapes[0], np.float32, False),
            (shapes[0], HALF, True),
            (shapes[1], np.float64, True),
        )
    )


def slope_by_difference(function: Callable[[Floats], Floats], x: Floats, dy: Floats) -> Floats:
    """Return the gradient of sum(function(x) * dy) by differences."""
    dx, h = np.zeros(x.shape), 1e-5
    for i in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h
        down[i] -= h
        dx[i] = ((function(up) - function(down)) * dy).sum() / (2 * h)
    return dx


@case
def batch_normalisation() -> str:
    def one(mode: int, kind: Any, channels_last: bool, ops: int) -> str:
        n, eps, factor = Calls(), 1e-3, 0.25
        shape = (4, 3, 5, 6)
        axes: tuple[int, ...] = (0, 2, 3) if mode else (0,)
        of = (1, 3, 1, 1) if mode else (1, 3, 5, 6)
        order = last(4) if channels_last else None
        wide = np.float64 if kind is np.float64 else np.float32
        x, z, dy = (numbers(shape, kind) for _ in range(3))
        scale, bias, moving, spread = (np.abs(numbers(of, wide)) + 0.5 for _ in range(4))
        x64, z64, dy64 = (a.astype(np.float64) for a in (x, z, dy))
        m = x64.size / np.prod(of)

        def normal(x: Floats, scale: Floats = scale, bias: Floats = bias) -> Floats:
            mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
            y = (x - mean) / np.sqrt(var + eps) * scale + bias
            return np.maximum(y + (z64 if ops == 2 else 0), 0) if ops else y

        tensors = [
            Tensor(a, order)
            for a in (x, z, np.zeros(shape, kind), dy, np.zeros(shape, kind), np.zeros(shape, kind))
        ]
        channels = [
            Tensor(a)
            for a in (
                scale,
                bias,
                moving,
                spread,
                np.zeros_like(scale),
                np.zeros_like(scale),
                np.zeros_like(scale),
                np.zeros_like(scale),
            )
        ]
        on_x, on_z, on_y, on_dy, on_dx, on_dz = (n.both(t) for t in tensors)
        scaled, biased, averaged, varied, saved, inverse, dscale, dbias = (t.pointer for t in channels)
        derived = n.made("Tensor", "cudnnSetTensorNdDescriptor", 0, 4, ints([1] * 4), ints([1] * 4))
        assert n.library.cudnnDeriveBNTensorDescriptor(derived, on_x[0], mode) == 0
        a, b = real(1, kind), real(0, kind)
        relu = n.made("Activation", "cudnnSetActivationDescriptor", 1, 0, ctypes.c_double(0))
        none, size = ctypes.c_size_t(0), ctypes.c_size_t(9)
        n.done(
            "cudnnGetBatchNormalizationTrainingExReserveSpaceSize",
            mode,
            ops,
            relu,
            on_x[0],
            ctypes.byref(size),
        )
        n.done(
            "cudnnBatchNormalizationForwardTrainingEx", mode, ops, a, b, *on_x, *(on_z if ops == 2 else (None, None)), *on_y, derived, scaled, biased,
            ctypes.c_double(factor), averaged, varied, ctypes.c_double(eps), saved, inverse, relu, None, none, None, none,
        )  # fmt: skip
        mean, var = x64.mean(axes, keepdims=True), x64.var(axes, keepdims=True)
        found = (
            close(tensors[2].get(), normal(x64), kind, 9)
            or close(channels[4].get(), mean, wide, 120)
            or close(channels[5].get(), 1 / np.sqrt(var + eps), wide, 120)
            or close(channels[2].get(), 0.75 * moving + 0.25 * mean, wide, 9)
            or close(channels[3].get(), 0.75 * spread + 0.25 * var * m / (m - 1), wide, 9)
        )
        if found:
            return found
        n.done(
            "cudnnBatchNormalizationBackwardEx", mode, ops, a, b, a, b, *on_x, *(on_y if ops else (None, None)), *on_dy,
            *(on_dz if ops == 2 else (None, None)), *on_dx, derived, scaled, biased, dscale, dbias, ctypes.c_double(eps), saved, inverse, relu,
            None, none, None, none,
        )  # fmt: skip
        slope = dy64 * (tensors[2].get() > 0) if ops else dy64
        loose = {np.float32: HALF, np.float64: np.float32}.get(kind, kind)
        found = (
            close(tensors[4].get(), slope_by_difference(normal, x64, dy64), loose, 4)
            or close(
                channels[6].get(),
                (slope * (x64 - mean) / np.sqrt(var + eps)).sum(axes, keepdims=True),
                wide,
                120,
            )
            or close(channels[7].get(), slope.sum(axes, keepdims=True), wide, 120)
            or (close(tensors[5].get(), slope, kind) if ops == 2 else "")
        )
        if found or ops:
            return found
        n.done(
            "cudnnBatchNormalizationForwardInference",
            mode,
            a,
            b,
            *on_x,
            *on_y,
            derived,
            scaled,
            biased,
            averaged,
            varied,
            ctypes.c_double(eps),
        )
        used, spreads = channels[2].get(), channels[3].get()
        wanted = (x64 - used) / np.sqrt(spreads + eps) * scale + bias
        return close(tensors[2].get(), wanted, kind, 9)

    return first(
        (f"mode {mode} {kind.__name__} operations {ops}", one(mode, kind, channels, ops))
        for mode, kind, channels, ops in (
            (1, np.float32, False, 0), (1, np.float32, True, 0), (1, np.float64, True, 1), (0, np.float32, False, 0),
            (1, HALF, True, 0), (1, np.float32, True, 1), (1, np.float32, False, 2),
        )
        if not (REAL and ops)  # NVIDIA's library does these for half precision and persistent kernels
    )  # fmt: skip


@case
def softmax_forward_and_backward() -> str:
    def one(algorithm: int, mode: int, kind: Any) -> str:
        n = Calls()
        x, dy = numbers((3, 5, 2, 3), kind), numbers((3, 5, 2, 3), kind)
        axes: tuple[int, ...] = (1,) if mode else (1, 2, 3)

        def right(x: Floats) -> Floats:
            y = np.exp(x - x.max(axes, keepdims=True))
            y = y / y.sum(axes, keepdims=True)
            return np.log(y) if algorithm == 2 else y

        on = [Tensor(a) for a in (x, np.zeros_like(x), dy, np.zeros_like(x))]
        a, b = real(1, kind), real(0, kind)
        n.done("cudnnSoftmaxForward", algorithm, mode, a, *n.both(on[0]), b, *n.both(on[1]))
        n.done("cudnnSoftmaxBackward", algorithm, mode, a, *n.both(on[1]), *n.both(on[2]), b, *n.both(on[3]))
        return close(on[1].get(), right(x.astype(np.float64)), kind, 9) or close(
            on[3].get(),
            slope_by_difference(right, x.astype(np.float64), dy.astype(np.float64)),
            HALF if kind is HALF else np.float32,
            100,
        )

    return first(
        (f"algorithm {a}, mode {m}, {k.__name__}", one(a, m, k))
        for a in (0, 1, 2)
        for m in (0, 1)
        for k in (np.float32, np.float64)
    )


@case
def activations() -> str:
    n = Calls()
    functions: list[tuple[int, float, Callable[[Floats], Floats]]] = [
        (0, 0, lambda x: 1 / (1 + np.exp(-x))), (1, 0, lambda x: np.maximum(x, 0)), (2, 0, np.tanh),
        (3, 0.7, lambda x: np.clip(x, 0, 0.7)), (4, 1.5, lambda x: np.where(x > 0, x, 1.5 * np.expm1(x))), (6, 0, lambda x: x / (1 + np.exp(-x))),
    ]  # fmt: skip

    def one(mode: int, coefficient: float, right: Callable[[Floats], Floats]) -> str:
        x, dy = numbers((2, 3, 4, 5), np.float64), numbers((2, 3, 4, 5), np.float64)
        how = n.made("Activation", "cudnnSetActivationDescriptor", mode, 0, ctypes.c_double(coefficient))
        on = [Tensor(a) for a in (x, np.zeros_like(x), dy, np.zeros_like(x))]
        a, b = real(1, np.float64), real(0, np.float64)
        n.done("cudnnActivationForward", how, a, *n.both(on[0]), b, *n.both(on[1]))
        n.done(
            "cudnnActivationBackward",
            how,
            a,
            *n.both(on[1]),
            *n.both(on[2]),
            *n.both(on[0]),
            b,
            *n.both(on[3]),
        )
        return close(on[1].get(), right(x), np.float64, 9) or close(
            on[3].get(), slope_by_difference(right, x, dy), np.float32
        )

    return first((f"mode {one_of[0]}", one(*one_of)) for one_of in functions)


@case
def tensors_are_added_transformed_scaled_and_reduced() -> str:
    n = Calls()
    x, bias, y = (numbers(s, np.float32) for s in ((2, 3, 4, 5), (1, 3, 1, 1), (2, 3, 4, 5)))
    on = [Tensor(a, o) for a, o in ((x, None), (bias, None), (y, last(4)))]
    found = []
    n.done("cudnnAddTensor", real(2), *n.both(on[1]), real(0.5), *n.both(on[2]))
    y = 0.5 * y + 2 * bias
    found.append(("a bias", close(on[2].get(), y, np.float32)))
    n.done("cudnnTransformTensor", real(1), *n.both(on[0]), real(1), *n.both(on[2]))
    y = y + x
    found.append(("another order", close(on[2].get(), y, np.float32)))
    n.done("cudnnScaleTensor", *n.both(on[2]), real(-3))
    y = -3 * y
    found.append(("a scale", close(on[2].get(), y, np.float32)))
    for operation, right in enumerate((np.add, np.multiply, np.minimum, np.maximum)):
        how = n.made("OpTensor", "cudnnSetOpTensorDescriptor", operation, 0, 0)
        n.done(
            "cudnnOpTensor", how, real(1), *n.both(on[0]), real(2), *n.both(on[1]), real(0), *n.both(on[2])
        )
        found.append((f"operation {operation}", close(on[2].get(), right(x, 2 * bias), np.float32)))
    reductions: list[Callable[..., Floats]] = [
        np.sum, np.prod, np.min, np.max, lambda a, axis, keepdims: np.abs(a).max(axis, keepdims=keepdims), np.mean,
        lambda a, axis, keepdims: np.abs(a).sum(axis, keepdims=keepdims), lambda a, axis, keepdims: np.sqrt((a * a).sum(axis, keepdims=keepdims)),
    ]  # fmt: skip
    for operation, right in enumerate(reductions):
        how = n.made("ReduceTensor", "cudnnSetReduceTensorDescriptor", operation, 0, 0, 0, 0)
        out = Tensor(np.zeros((1, 3, 1, 1), np.float32))
        size = ctypes.c_size_t()
        n.done("cudnnGetReductionWorkspaceSize", how, n.layout(on[0]), n.layout(out), ctypes.byref(size))
        n.done(
            "cudnnReduceTensor",
            how,
            None,
            ctypes.c_size_t(0),
            room(size.value),
            size,
            real(2),
            *n.both(on[0]),
            real(0),
            *n.both(out),
        )
        wanted = 2 * right(x.astype(np.float64), axis=(0, 2, 3), keepdims=True)
        found.append((f"reduction {operation}", close(out.get(), wanted, np.float32, 40)))
    value = ctypes.c_float(4.5)
    n.done("cudnnSetTensor", *n.both(on[2]), ctypes.byref(value))
    found.append(("a value", close(on[2].get(), np.full(y.shape, 4.5), np.float32)))
    return first(found)


@case
def normalisation_across_channels() -> str:
    n, size, alpha, beta, k = Calls(), 5, 0.3, 0.75, 2.0
    x, dy = numbers((2, 7, 3, 2), np.float64), numbers((2, 7, 3, 2), np.float64)

    def right(x: Floats) -> Floats:
        sums = np.stack([(x[:, max(c - 2, 0) : c + 3] ** 2).sum(1) for c in range(7)], 1)
        return x / (k + alpha / size * sums) ** beta

    how = n.made("LRN", "cudnnSetLRNDescriptor", size, *(ctypes.c_double(v) for v in (alpha, beta, k)))
    on = [Tensor(a, last(4)) for a in (x, np.zeros_like(x), dy, np.zeros_like(x))]
    a, b = real(1, np.float64), real(0, np.float64)
    n.done("cudnnLRNCrossChannelForward", how, 0, a, *n.both(on[0]), b, *n.both(on[1]))
    n.done(
        "cudnnLRNCrossChannelBackward",
        how,
        0,
        a,
        *n.both(on[1]),
        *n.both(on[2]),
        *n.both(on[0]),
        b,
        *n.both(on[3]),
    )
    return close(on[1].get(), right(x), np.float64, 9) or close(
        on[3].get(), slope_by_difference(right, x, dy), np.float32
    )


if __name__ == "__main__":
    CASES.main()
