"""TensorFlow's operations of images, layers, random numbers, convolutions and linear algebra."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_arrays import (
    A2,
    FILTERS,
    IMAGES,
    LABELS,
    RANDOM,
    ROWS,
    SEED,
    SPD,
    VOLUME,
    A,
    B,
    C,
    D,
    H,
    Operations,
    P,
    S,
    assigned,
    compiled,
    moments,
    slope,
    t,
)


def images() -> Operations:
    boxes = np.array([[0, 0, 0.5, 0.5], [0.2, 0.1, 0.9, 0.8]], np.float32)
    corners = np.abs(RANDOM.standard_normal((20, 4))).astype(np.float32)
    corners[:, 2:] += corners[:, :2] + 0.1
    scores = RANDOM.uniform(size=20).astype(np.float32)
    result: Operations = {}
    for method in ("bilinear", "nearest", "bicubic", "area", "lanczos3", "gaussian", "mitchellcubic"):
        result[f"resize {method}"] = lambda m=method: tf.image.resize(t(IMAGES), [23, 9], m)
    return result | {
        "resize's slope": lambda: slope(lambda x: tf.reduce_sum(tf.image.resize(x, [23, 9]) ** 2), IMAGES),
        "crop_and_resize": lambda: tf.image.crop_and_resize(t(IMAGES), t(boxes), t([0, 1]), [7, 7]),
        "flip_left_right": lambda: tf.image.flip_left_right(t(IMAGES)),
        "rot90": lambda: tf.image.rot90(t(IMAGES)),
        "rgb_to_grayscale": lambda: tf.image.rgb_to_grayscale(t(IMAGES)),
        "rgb_to_hsv": lambda: tf.image.rgb_to_hsv(t(IMAGES)),
        "hsv_to_rgb": lambda: tf.image.hsv_to_rgb(t(IMAGES)),
        "adjust_contrast": lambda: tf.image.adjust_contrast(t(IMAGES), 1.7),
        "adjust_hue": lambda: tf.image.adjust_hue(t(IMAGES), 0.2),
        "adjust_saturation": lambda: tf.image.adjust_saturation(t(IMAGES), 0.4),
        "adjust_brightness": lambda: tf.image.adjust_brightness(t(IMAGES), 0.2),
        "per_image_standardization": lambda: tf.image.per_image_standardization(t(IMAGES)),
        "total_variation": lambda: tf.image.total_variation(t(IMAGES)),
        "image_gradients": lambda: tf.image.image_gradients(t(IMAGES)),
        "psnr": lambda: tf.image.psnr(t(IMAGES), t(IMAGES[::-1]), 1.0),
        "non_max_suppression": lambda: tf.image.non_max_suppression(t(corners), t(scores), 8, 0.3),
        "central_crop": lambda: tf.image.central_crop(t(IMAGES), 0.5),
        "projective transform": lambda: tf.raw_ops.ImageProjectiveTransformV3(
            images=t(IMAGES),
            transforms=t([[1.0, 0.2, 0, 0.1, 1, 0, 0, 0]]),
            output_shape=t([16, 16]),
            fill_value=0.0,
            interpolation="BILINEAR",
        ),
    }


def layers() -> Operations:
    soft = np.eye(48, dtype=np.float32)[LABELS]
    return {
        "relu": lambda: tf.nn.relu(t(A)),
        "relu6": lambda: tf.nn.relu6(t(A) * 5),
        "leaky_relu": lambda: tf.nn.leaky_relu(t(A)),
        "elu": lambda: tf.nn.elu(t(A)),
        "selu": lambda: tf.nn.selu(t(A)),
        "gelu": lambda: tf.nn.gelu(t(A)),
        "gelu approximate": lambda: tf.nn.gelu(t(A), approximate=True),
        "silu": lambda: tf.nn.silu(t(A)),
        "softmax": lambda: tf.nn.softmax(t(A)),
        "softmax of half": lambda: tf.nn.softmax(t(H)),
        "log_softmax": lambda: tf.nn.log_softmax(t(A)),
        "softmax_cross_entropy": lambda: tf.nn.softmax_cross_entropy_with_logits(t(soft), t(A)),
        "sparse_softmax_cross_entropy": lambda: tf.nn.sparse_softmax_cross_entropy_with_logits(
            t(LABELS), t(A)
        ),
        "sigmoid_cross_entropy": lambda: tf.nn.sigmoid_cross_entropy_with_logits(t(soft), t(A)),
        "l2_loss": lambda: tf.nn.l2_loss(t(A)),
        "l2_normalize": lambda: tf.nn.l2_normalize(t(A), axis=1),
        "bias_add": lambda: tf.nn.bias_add(t(A), t(A[0])),
        "bias_add's slope": lambda: slope(lambda b: tf.reduce_sum(tf.nn.bias_add(t(A), b) ** 2), A[0]),
        "embedding_lookup": lambda: tf.nn.embedding_lookup(t(A), t(ROWS)),
        "embedding's slope": lambda: tf.convert_to_tensor(
            slope(lambda x: tf.reduce_sum(tf.gather(x, t(ROWS)) ** 2), A)
        ),
        "dropout": lambda: moments(lambda: tf.nn.dropout(tf.ones([100, 100]), 0.5, seed=1), 1.0, 1.0),
        "batch_normalization": lambda: tf.nn.batch_normalization(
            t(A), t(A[0]), t(P[0]), t(A[1]), t(A[2]), 1e-3
        ),
        "layer normalization": lambda: tf.keras.ops.layer_normalization(t(A)),
        "matmul": lambda: tf.matmul(t(A), t(A2), transpose_b=True),
        "matmul of double": lambda: tf.matmul(t(D), t(D), transpose_a=True),
        "matmul of half": lambda: tf.matmul(t(H), t(H), transpose_b=True),
        "matmul of complex": lambda: tf.matmul(t(C), t(C), adjoint_b=True),
        "matmul of batches": lambda: tf.matmul(t(B), t(B), transpose_a=True),
        "matmul's slope": lambda: slope(
            lambda x: tf.reduce_sum(tf.matmul(x, t(A2), transpose_b=True) ** 2), A
        ),
        "matvec": lambda: tf.linalg.matvec(t(A), t(A2[0])),
        "einsum": lambda: tf.einsum("bij,kj->bik", t(B), t(B[0])),
        "tensordot": lambda: tf.tensordot(t(B), t(A), [[1], [1]]),
        "sparse matmul": lambda: tf.sparse.sparse_dense_matmul(
            tf.sparse.from_dense(np.eye(64, dtype=np.float32)), t(A)
        ),
        "sparse to_dense": lambda: tf.sparse.to_dense(tf.sparse.from_dense(np.eye(9, dtype=np.float32))) + 1,
        "ctc_loss": lambda: tf.nn.ctc_loss(t([[1, 2, 3]]), t(B[:, :1, :5]), t([3]), t([4]), blank_index=0),
        "moments of a layer": lambda: slope(lambda x: tf.reduce_sum(tf.nn.softmax(x) ** 2), A),
        "tanh's slope": lambda: slope(lambda x: tf.reduce_sum(tf.tanh(x) ** 2), A),
        "top_k's slope": lambda: slope(lambda x: tf.reduce_sum(tf.math.top_k(x, 3)[0] ** 2), A),
        "assign_add": lambda: assigned(lambda v: v.assign_add(t(A2))),
        "assign a slice": lambda: assigned(lambda v: v[2:5].assign(t(A2[2:5]))),
        "scatter_add of a variable": lambda: assigned(
            lambda v: v.scatter_add(tf.IndexedSlices(t(A2[:4]), t(ROWS)))
        ),
        "Adam": lambda: assigned(lambda v: tf.keras.optimizers.Adam(0.1).apply_gradients([(t(A2), v)])),
        "SGD with momentum": lambda: assigned(
            lambda v: tf.keras.optimizers.SGD(0.1, momentum=0.9).apply_gradients([(t(A2), v)])
        ),
        "function": lambda: compiled(lambda x, y: tf.tanh(x) * y + 1, A, A2),
        "function by XLA": lambda: compiled(
            lambda x, y: tf.reduce_sum(tf.tanh(x) * y, 0), A, A2, jit_compile=True
        ),
        "matmul by XLA in TF32": lambda: compiled(
            lambda x, y: tf.nn.softmax(tf.matmul(x, y, transpose_b=True)), A, A2, jit_compile=True
        ),
        "while_loop": lambda: compiled(
            lambda x: tf.while_loop(lambda i, _: i < 5, lambda i, y: (i + 1, y * 1.5), [t(0), x])[1], A
        ),
        "cond": lambda: compiled(lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x + 1, lambda: x - 1), A),
        "map_fn": lambda: tf.map_fn(lambda x: x * 2 + 1, t(A[:4])),
        "scan": lambda: tf.scan(lambda total, x: total * 0.5 + x, t(A[:6])),
        "vectorized_map": lambda: tf.vectorized_map(lambda x: tf.reduce_sum(x * x), t(A)),
        "py_function": lambda: tf.py_function(lambda x: x + 1, [t(A)], tf.float32),
    }


def draws() -> Operations:
    shape = [200, 100]
    return {
        "stateless_uniform": lambda: tf.random.stateless_uniform(shape, SEED),
        "stateless_normal": lambda: tf.random.stateless_normal(shape, SEED),
        "stateless_truncated_normal": lambda: tf.random.stateless_truncated_normal(shape, SEED),
        "stateless_uniform of int32": lambda: tf.random.stateless_uniform(shape, SEED, 0, 99, tf.int32),
        "stateless_uniform of half": lambda: tf.random.stateless_uniform(shape, SEED, dtype=tf.float16),
        "stateless_binomial": lambda: tf.random.stateless_binomial([500], SEED, 10.0, 0.3),
        "stateless_categorical": lambda: moments(
            lambda: tf.random.stateless_categorical(tf.zeros([1, 3]), 9999, SEED), 1.0, 0.816
        ),
        "uniform": lambda: moments(lambda: tf.random.uniform(shape, seed=1), 0.5, 0.289),
        "normal": lambda: moments(lambda: tf.random.normal(shape, 1.0, 2.0, seed=1), 1.0, 2.0),
        "truncated_normal": lambda: moments(lambda: tf.random.truncated_normal(shape, seed=1), 0.0, 0.88),
        "uniform of int32": lambda: moments(
            lambda: tf.random.uniform(shape, 0, 3, tf.int32, seed=1), 1.0, 0.816
        ),
        "generator": lambda: tf.random.Generator.from_seed(3).normal(shape),
        "generator uniform": lambda: tf.random.Generator.from_seed(3).uniform(shape),
        "categorical": lambda: moments(
            lambda: tf.random.categorical(tf.zeros([1, 3]), 9999, seed=1), 1.0, 0.816
        ),
        "shuffle": lambda: tf.sort(tf.random.shuffle(t(A[:, 0]), seed=1)),
        "stateless_shuffle": lambda: tf.sort(tf.random.experimental.stateless_shuffle(t(A[:, 0]), SEED)),
    }


def convolutions() -> Operations:
    return {
        "conv2d": lambda: tf.nn.conv2d(t(IMAGES), t(FILTERS), 1, "SAME"),
        "conv2d with strides": lambda: tf.nn.conv2d(t(IMAGES), t(FILTERS), 2, "VALID"),
        "conv2d dilated": lambda: tf.nn.conv2d(t(IMAGES), t(FILTERS), 1, "SAME", dilations=2),
        "conv2d's slope by the image": lambda: slope(
            lambda x: tf.reduce_sum(tf.nn.conv2d(x, t(FILTERS), 1, "SAME") ** 2), IMAGES
        ),
        "conv2d's slope by the filter": lambda: slope(
            lambda f: tf.reduce_sum(tf.nn.conv2d(t(IMAGES), f, 1, "SAME") ** 2), FILTERS
        ),
        "conv2d of half": lambda: tf.nn.conv2d(
            tf.cast(t(IMAGES), tf.float16), tf.cast(t(FILTERS), tf.float16), 1, "SAME"
        ),
        "conv1d": lambda: tf.nn.conv1d(t(IMAGES[:, 0]), t(FILTERS[0]), 1, "SAME"),
        "conv3d": lambda: tf.nn.conv3d(t(VOLUME), tf.ones([2, 2, 2, 2, 3]), [1] * 5, "SAME"),
        "conv2d_transpose": lambda: tf.nn.conv2d_transpose(
            t(np.tile(IMAGES, (1, 1, 1, 3))[..., :8]), t(FILTERS), [2, 32, 32, 3], 2
        ),
        "depthwise_conv2d": lambda: tf.nn.depthwise_conv2d(t(IMAGES), t(FILTERS[..., :2]), [1] * 4, "SAME"),
        "depthwise_conv2d's slope": lambda: slope(
            lambda x: tf.reduce_sum(tf.nn.depthwise_conv2d(x, t(FILTERS[..., :2]), [1] * 4, "SAME") ** 2),
            IMAGES,
        ),
        "separable_conv2d": lambda: tf.nn.separable_conv2d(
            t(IMAGES), t(FILTERS[..., :2]), tf.ones([1, 1, 6, 5]), [1] * 4, "SAME"
        ),
        "max_pool2d": lambda: tf.nn.max_pool2d(t(IMAGES), 2, 2, "VALID"),
        "max_pool2d's slope": lambda: slope(
            lambda x: tf.reduce_sum(tf.nn.max_pool2d(x, 3, 2, "SAME") ** 2), IMAGES
        ),
        "avg_pool2d": lambda: tf.nn.avg_pool2d(t(IMAGES), 3, 2, "SAME"),
        "avg_pool2d's slope": lambda: slope(
            lambda x: tf.reduce_sum(tf.nn.avg_pool2d(x, 2, 2, "VALID") ** 2), IMAGES
        ),
        "max_pool3d": lambda: tf.nn.max_pool3d(t(VOLUME), 2, 2, "VALID"),
        "max_pool_with_argmax": lambda: tf.nn.max_pool_with_argmax(t(IMAGES), 2, 2, "VALID"),
        "fractional_max_pool": lambda: tf.shape(
            tf.nn.fractional_max_pool(t(IMAGES), [1, 1.4, 1.4, 1], seed=1)[0]
        ),
        "dilation2d": lambda: tf.nn.dilation2d(
            t(IMAGES), t(FILTERS[..., 0]), [1] * 4, "SAME", "NHWC", [1] * 4
        ),
        "local_response_normalization": lambda: tf.nn.local_response_normalization(t(IMAGES)),
        "fused batch norm, training": lambda: tf.compat.v1.nn.fused_batch_norm(
            t(IMAGES), tf.ones([3]), tf.zeros([3])
        )[0],
        "fused batch norm, inference": lambda: tf.compat.v1.nn.fused_batch_norm(
            t(IMAGES), tf.ones([3]), tf.zeros([3]), tf.zeros([3]), tf.ones([3]), is_training=False
        )[0],
        "fused batch norm's slope": lambda: slope(
            lambda x: tf.reduce_sum(tf.compat.v1.nn.fused_batch_norm(x, tf.ones([3]), tf.zeros([3]))[0] ** 3),
            IMAGES,
        ),
    }


def recurrent() -> Operations:
    keras = tf.keras
    sequence = A.reshape(4, 16, 48)

    def layer(make: Callable[[], Any], on: Any) -> Any:
        keras.utils.set_random_seed(1)
        return make()(t(on))

    return {
        "LSTM": lambda: layer(lambda: keras.layers.LSTM(8), sequence),
        "GRU": lambda: layer(lambda: keras.layers.GRU(8), sequence),
        "SimpleRNN": lambda: layer(lambda: keras.layers.SimpleRNN(8), sequence),
        "MultiHeadAttention": lambda: layer(
            lambda: lambda x: keras.layers.MultiHeadAttention(2, 8)(x, x), sequence
        ),
    }


def algebra() -> Operations:
    right = S[:, :, :3]
    return {
        "band_part": lambda: tf.linalg.band_part(t(S), 1, 2),
        "diag": lambda: tf.linalg.diag(t(A[0])),
        "diag_part": lambda: tf.linalg.diag_part(t(S)),
        "set_diag": lambda: tf.linalg.set_diag(t(S), t(S[:, 0])),
        "trace": lambda: tf.linalg.trace(t(S)),
        "cross": lambda: tf.linalg.cross(t(A[:, :3]), t(A2[:, :3])),
        "cholesky": lambda: tf.linalg.cholesky(t(SPD)),
        "cholesky_solve": lambda: tf.linalg.cholesky_solve(tf.linalg.cholesky(t(SPD)), t(right)),
        "triangular_solve": lambda: tf.linalg.triangular_solve(t(SPD), t(right)),
        "solve": lambda: tf.linalg.solve(t(SPD), t(right)),
        "inv": lambda: tf.linalg.inv(t(SPD)),
        "det": lambda: tf.linalg.det(t(SPD / 12)),
        "slogdet": lambda: tf.linalg.slogdet(t(SPD)),
        "qr": lambda: tf.abs(tf.linalg.qr(t(S))[1]),
        "svd": lambda: tf.linalg.svd(t(S), compute_uv=False),
        "eigh": lambda: tf.linalg.eigvalsh(t(SPD)),
        "lu": lambda: tf.linalg.lu(t(SPD))[0],
        "lstsq": lambda: tf.linalg.lstsq(t(SPD), t(right)),
        "expm": lambda: tf.linalg.expm(t(S / 12)),
        "pinv": lambda: tf.linalg.pinv(t(SPD)),
        "logdet": lambda: tf.linalg.logdet(t(SPD)),
        "tridiagonal_solve": lambda: tf.linalg.tridiagonal_solve(
            t(P[:3] + np.float32([[0], [3], [0]])), t(A2[0, :, None]), "compact"
        ),
        "fft": lambda: tf.signal.fft(t(C)),
        "ifft": lambda: tf.signal.ifft(t(C)),
        "rfft": lambda: tf.signal.rfft(t(A)),
        "irfft": lambda: tf.signal.irfft(t(C)),
        "fft2d": lambda: tf.signal.fft2d(t(C)),
        "rfft2d": lambda: tf.signal.rfft2d(t(A)),
        "fft3d": lambda: tf.signal.fft3d(tf.cast(t(B), tf.complex64)),
        "stft": lambda: tf.signal.stft(t(A.ravel()), 64, 16),
        "dct": lambda: tf.signal.dct(t(A)),
    }
