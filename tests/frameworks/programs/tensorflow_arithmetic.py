"""TensorFlow's operations of arithmetic, reductions, and what moves or selects elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_arrays import (
    A2,
    I1,
    I2,
    IMAGES,
    L1,
    L2,
    LABELS,
    Q1,
    Q2,
    ROWS,
    SEGMENTS,
    SHUFFLED,
    A,
    B,
    C,
    D,
    H,
    Operations,
    P,
    U,
    slope,
    t,
)

UNARY = {
    "A": "abs cos sin tanh sigmoid exp square sign floor ceil rint negative erf erfc sinh cosh softplus softsign expm1 atan asinh round",
    "P": "sqrt rsqrt log log1p reciprocal lgamma digamma bessel_i0e bessel_i1e special.bessel_k0e special.dawsn reciprocal_no_nan "
    "special.expint",
    "U": "asin acos atanh tan erfinv log1p ndtri",
}
BINARY = (
    "add subtract multiply divide maximum minimum squared_difference atan2 floordiv floormod divide_no_nan "
    "multiply_no_nan greater greater_equal less less_equal equal not_equal truediv mod"
)
REDUCTIONS = "reduce_sum reduce_mean reduce_max reduce_min reduce_prod reduce_std reduce_variance reduce_logsumexp reduce_euclidean_norm"


def named(name: str) -> Any:
    found: Any = tf.math
    for part in name.split("."):
        found = getattr(found, part)
    return found


def mathematics() -> Operations:
    given = {"A": A, "P": P, "U": U}
    result: Operations = {}
    for which, names in UNARY.items():
        for name in names.split():
            result[f"{name} of {which}"] = lambda name=name, which=which: named(name)(t(given[which]))
    for name in BINARY.split():
        result[name] = lambda name=name: named(name)(t(A), t(A2))
    for name in ("add", "subtract", "multiply", "floordiv", "floormod", "maximum", "minimum", "truediv"):
        result[f"{name} of int32"] = lambda name=name: named(name)(t(I1), t(I2))
        result[f"{name} of int64"] = lambda name=name: named(name)(t(L1), t(L2))
    for name in ("add", "multiply", "exp", "tanh"):
        values = (H, H) if name in ("add", "multiply") else (H,)
        result[f"{name} of half"] = lambda name=name, v=values: named(name)(*map(t, v))
        doubles = tuple(one.astype(np.float64) for one in values)
        result[f"{name} of double"] = lambda name=name, v=doubles: named(name)(*map(t, v))
    return result | {
        "add of bfloat16": lambda: tf.cast(
            tf.cast(t(A), tf.bfloat16) + tf.cast(t(A2), tf.bfloat16), tf.float32
        ),
        "pow": lambda: tf.pow(t(P), t(A2)),
        "pow of int32": lambda: tf.pow(t(I2), 3),
        "xlogy": lambda: tf.math.xlogy(t(P), t(P)),
        "xdivy": lambda: tf.math.xdivy(t(A), t(P)),
        "xlog1py": lambda: tf.math.xlog1py(t(P), t(P)),
        "igamma": lambda: tf.math.igamma(t(P), t(P)),
        "igammac": lambda: tf.math.igammac(t(P), t(P)),
        "betainc": lambda: tf.math.betainc(t(P), t(P), tf.abs(t(U))),
        "zeta": lambda: tf.math.zeta(t(P) + 1.5, t(P)),
        "polygamma": lambda: tf.math.polygamma(tf.ones_like(t(P)), t(P) + 1),
        "nextafter": lambda: tf.math.nextafter(t(D), t(D) + 1),
        "cumulative logsumexp": lambda: tf.math.cumulative_logsumexp(t(A), axis=1),
        "broadcast": lambda: t(A) + t(A[0]),
        "logical_and": lambda: tf.logical_and(t(Q1), t(Q2)),
        "logical_or": lambda: tf.logical_or(t(Q1), t(Q2)),
        "logical_not": lambda: tf.logical_not(t(Q1)),
        "is_nan": lambda: tf.math.is_nan(t(A) / tf.zeros_like(t(A))),
        "is_inf": lambda: tf.math.is_inf(t(A) / tf.zeros_like(t(A))),
        "is_finite": lambda: tf.math.is_finite(t(A)),
        "bitwise_and": lambda: tf.bitwise.bitwise_and(t(I1), t(I2)),
        "bitwise_xor": lambda: tf.bitwise.bitwise_xor(t(I1), t(I2)),
        "left_shift": lambda: tf.bitwise.left_shift(t(I1), t(I2)),
        "right_shift": lambda: tf.bitwise.right_shift(t(I1), t(I2)),
        "invert": lambda: tf.bitwise.invert(t(I1)),
        "population_count": lambda: tf.raw_ops.PopulationCount(x=t(I1)),
        "complex multiply": lambda: t(C) * t(C),
        "complex abs": lambda: tf.abs(t(C)),
        "angle": lambda: tf.math.angle(t(C)),
        "conj": lambda: tf.math.conj(t(C)),
        "real and imag": lambda: (tf.math.real(t(C)), tf.math.imag(t(C))),
        "complex": lambda: tf.complex(t(A), t(A2)),
        "clip_by_value": lambda: tf.clip_by_value(t(A), -0.5, 0.5),
        "clip_by_norm": lambda: tf.clip_by_norm(t(A), 1.0),
        "clip_by_global_norm": lambda: tf.clip_by_global_norm([t(A), t(A2)], 1.0),
        "add_n": lambda: tf.add_n([t(A), t(A2), t(A)]),
        "cast to half": lambda: tf.cast(t(A), tf.float16),
        "cast to int32": lambda: tf.cast(t(A) * 10, tf.int32),
        "cast to bool": lambda: tf.cast(t(I1), tf.bool),
        "cast to complex": lambda: tf.cast(t(A), tf.complex64),
        "bitcast": lambda: tf.bitcast(t(A), tf.int32),
        "saturate_cast": lambda: tf.saturate_cast(t(A) * 1000, tf.int8),
        "lerp": lambda: t(A) + 0.3 * (t(A2) - t(A)),
    }


def reductions() -> Operations:
    result: Operations = {}
    for name in REDUCTIONS.split():
        result[f"{name} of rows"] = lambda name=name: named(name)(t(U), axis=1)
        result[f"{name} of columns"] = lambda name=name: named(name)(t(U), axis=0)
        result[f"{name} of all"] = lambda name=name: named(name)(t(U))
    for name in ("segment_sum", "segment_mean", "segment_max", "segment_min", "segment_prod"):
        result[name] = lambda name=name: named(name)(t(A), t(SEGMENTS))
        result[f"unsorted_{name}"] = lambda name=name: named(f"unsorted_{name}")(t(A), t(SHUFFLED), 9)
    return result | {
        "reduce_sum of the middle": lambda: tf.reduce_sum(t(B), axis=1),
        "reduce_sum of two": lambda: tf.reduce_sum(t(B), axis=[0, 2], keepdims=True),
        "reduce_sum of int64": lambda: tf.reduce_sum(t(L1), axis=0),
        "reduce_sum of half": lambda: tf.reduce_sum(t(H), axis=0),
        "reduce_sum of complex": lambda: tf.reduce_sum(t(C), axis=0),
        "reduce_any": lambda: tf.reduce_any(t(Q1), axis=0),
        "reduce_all": lambda: tf.reduce_all(t(Q1), axis=1),
        "argmax": lambda: tf.argmax(t(A), axis=1),
        "argmin": lambda: tf.argmin(t(A), axis=0),
        "count_nonzero": lambda: tf.math.count_nonzero(t(I1) % 3),
        "cumsum": lambda: tf.cumsum(t(A), axis=1),
        "cumsum reverse exclusive": lambda: tf.cumsum(t(A), axis=0, reverse=True, exclusive=True),
        "cumprod": lambda: tf.math.cumprod(t(U), axis=1),
        "norm": lambda: tf.norm(t(A), axis=1),
        "moments": lambda: tf.nn.moments(t(A), axes=[0]),
        "bincount": lambda: tf.math.bincount(t(I2), minlength=9),
        "histogram_fixed_width": lambda: tf.histogram_fixed_width(t(A), [-2.0, 2.0], nbins=16),
        "sparse_segment_sum": lambda: tf.sparse.segment_sum(t(A), t(ROWS), t([0, 0, 1, 2])),
        "sparse_segment_mean": lambda: tf.sparse.segment_mean(t(A), t(ROWS), t([0, 0, 1, 2])),
        "confusion_matrix": lambda: tf.math.confusion_matrix(t(SEGMENTS), t(SHUFFLED), 9),
        "approx_max_k": lambda: tf.math.reduce_max(tf.math.approx_max_k(t(A), 4)[0], axis=1),
    }


def movement() -> Operations:
    indices = np.array([[0, 1], [5, 7], [63, 47]], np.int32)
    return {
        "where of three": lambda: tf.where(t(Q1), t(A), t(A2)),
        "where of a broadcast": lambda: tf.where(t(Q1), t(A), 0.0),
        "where of indices": lambda: tf.where(t(Q1)),
        "boolean_mask": lambda: tf.boolean_mask(t(A), t(Q1)),
        "gather": lambda: tf.gather(t(A), t(ROWS)),
        "gather of columns": lambda: tf.gather(t(A), t(ROWS) % 48, axis=1),
        "gather of batches": lambda: tf.gather(t(A), t(I2), batch_dims=1),
        "gather_nd": lambda: tf.gather_nd(t(A), t(indices)),
        "scatter_nd": lambda: tf.scatter_nd(t(indices), t([1.0, 2.0, 3.0]), [64, 48]),
        "tensor_scatter_nd_update": lambda: tf.tensor_scatter_nd_update(t(A), t(indices), t([1.0, 2.0, 3.0])),
        "tensor_scatter_nd_add": lambda: tf.tensor_scatter_nd_add(t(A), t(indices), t([1.0, 2.0, 3.0])),
        "tensor_scatter_nd_max": lambda: tf.tensor_scatter_nd_max(t(A), t(indices), t([1.0, 2.0, 3.0])),
        "dynamic_partition": lambda: tf.dynamic_partition(t(A), t(SHUFFLED), 9),
        "dynamic_stitch": lambda: tf.dynamic_stitch([t([0, 2]), t([1, 3])], [t(A[:2]), t(A[2:4])]),
        "one_hot": lambda: tf.one_hot(t(LABELS), 48),
        "sort": lambda: tf.sort(t(A), axis=1),
        "sort descending": lambda: tf.sort(t(A), axis=0, direction="DESCENDING"),
        "argsort": lambda: tf.argsort(t(A), axis=1, stable=True),
        "top_k": lambda: tf.math.top_k(t(A), 5),
        "top_k of many": lambda: tf.math.top_k(t(A.reshape(1, -1)), 700),
        "in_top_k": lambda: tf.math.in_top_k(t(LABELS), t(A), 5),
        "nth_element": lambda: tf.raw_ops.NthElement(input=t(A), n=3),
        "unique": lambda: tf.sort(tf.unique(t(I1.ravel()))[0]),
        "unique_with_counts": lambda: tf.reduce_sum(tf.unique_with_counts(t(I1.ravel()))[2]),
        "searchsorted": lambda: tf.searchsorted(t(np.sort(A)), t(A2)),
        "bucketize": lambda: tf.raw_ops.Bucketize(input=t(A), boundaries=[-1.0, 0.0, 1.0]),
        "concat": lambda: tf.concat([t(A), t(A2)], 1),
        "stack": lambda: tf.stack([t(A), t(A2)], 1),
        "unstack": lambda: tf.unstack(t(B)),
        "split": lambda: tf.split(t(A), [10, 20, 18], axis=1),
        "slice": lambda: t(A)[3:60:7, ::-1],
        "strided_slice with a new axis": lambda: t(B)[..., tf.newaxis, 3:9],
        "strided_slice's slope": lambda: slope(lambda x: tf.reduce_sum(x[1:9:2] ** 2), A),
        "pad": lambda: tf.pad(t(A), [[1, 2], [3, 0]]),
        "pad reflecting": lambda: tf.pad(t(A), [[1, 2], [3, 0]], "REFLECT"),
        "pad symmetric": lambda: tf.pad(t(A), [[1, 2], [3, 0]], "SYMMETRIC"),
        "tile": lambda: tf.tile(t(A), [2, 3]),
        "repeat": lambda: tf.repeat(t(A), 3, axis=0),
        "roll": lambda: tf.roll(t(A), [3, -5], [0, 1]),
        "reverse": lambda: tf.reverse(t(A), [0]),
        "reverse_sequence": lambda: tf.reverse_sequence(t(A), t(LABELS), seq_axis=1),
        "transpose": lambda: tf.transpose(t(A)),
        "transpose of three": lambda: tf.transpose(t(B), [2, 0, 1]),
        "reshape": lambda: tf.reshape(t(A), [-1, 32]) + 1,
        "expand_dims": lambda: tf.expand_dims(t(A), 1) + 1,
        "squeeze": lambda: tf.squeeze(t(A[None])) + 1,
        "broadcast_to": lambda: tf.broadcast_to(t(A[0]), [7, 48]),
        "meshgrid": lambda: tf.meshgrid(tf.range(5.0), tf.range(7.0)),
        "range": lambda: tf.range(3.0, 40.0, 1.5),
        "linspace": lambda: tf.linspace(0.0, 5.0, 17),
        "fill": lambda: tf.fill([3, 4], 2.5) + 1,
        "zeros_like": lambda: tf.zeros_like(t(A)),
        "ones": lambda: tf.ones([3, 5]) * 2,
        "eye": lambda: tf.eye(9),
        "shape": lambda: tf.shape(t(B)),
        "size": lambda: tf.size(t(B)),
        "sequence_mask": lambda: tf.sequence_mask(t(SHUFFLED), 9),
        "space_to_depth": lambda: tf.nn.space_to_depth(t(IMAGES), 2),
        "depth_to_space": lambda: tf.nn.depth_to_space(t(np.tile(IMAGES, (1, 1, 1, 4))), 2),
        "space_to_batch": lambda: tf.space_to_batch(t(IMAGES), [2, 2], [[0, 0], [0, 0]]),
        "batch_to_space": lambda: tf.batch_to_space(
            t(np.tile(IMAGES, (4, 1, 1, 1))), [2, 2], [[0, 0], [0, 0]]
        ),
        "extract_patches": lambda: tf.image.extract_patches(
            t(IMAGES), [1, 3, 3, 1], [1, 2, 2, 1], [1, 1, 1, 1], "SAME"
        ),
        "identity": lambda: tf.identity(t(A)),
        "ragged": lambda: tf.reduce_sum(
            tf.RaggedTensor.from_row_lengths(t(A[:, 0]), t([10, 20, 34])), axis=1
        ),
        "strings of numbers": lambda: tf.strings.to_number(tf.strings.as_string(t([1.5, 2.5]))) + 1,
    }
