"""Programs of one cell for each framework: a product of matrices and a training's steps on a slice, compared with the processor's."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PROGRAMS", "Program"]


@dataclass(frozen=True)
class Program:
    """A cell, the kernel that it runs in, and what it shows there and off any slice (empty: it needs a slice)."""

    code: str
    kernel: str
    shown: str
    off: str = ""


_MEMORY = """
import ctypes

def memory():
    size = ctypes.c_size_t()
    ctypes.CDLL("libcuda.so.1").cuDeviceTotalMem_v2(ctypes.byref(size), 0)
    return size.value >> 20
"""

_NUMBA = """
import numpy
from numba import cuda

@cuda.jit
def multiply(a, b, c):
    row, column = cuda.grid(2)
    if row < c.shape[0] and column < c.shape[1]:
        total = 0.0
        for place in range(a.shape[1]):
            total += a[row, place] * b[place, column]
        c[row, column] = total

@cuda.jit
def descend(weights, slope, rate):
    place = cuda.grid(1)
    if place < weights.size:
        weights[place] -= rate * slope[place]

numbers = numpy.random.default_rng(7)
a, b = numbers.normal(size=(2, 48, 48))
c = cuda.device_array((48, 48))
multiply[(3, 3), (16, 16)](cuda.to_device(a), cuda.to_device(b), c)

weights = cuda.to_device(numpy.zeros(48))
own = numpy.zeros(48)
for step in range(3):
    slope = a.T @ (a @ own - b[0]) / 48
    descend[2, 32](weights, cuda.to_device(slope), 0.1)
    own -= 0.1 * slope
right = numpy.allclose(c.copy_to_host(), a @ b), numpy.allclose(weights.copy_to_host(), own)
print("product and steps", *right, "of", cuda.current_context().get_memory_info()[1] >> 20, "MiB")
"""

_TENSORFLOW = """
import numpy, tensorflow as tf

numbers = numpy.random.default_rng(7).normal(size=(3, 48, 48)).astype("float32")
tf.config.experimental.enable_tensor_float_32_execution(False)

def compute(device):
    with tf.device(device):
        a, b, y = map(tf.constant, numbers)
        product = tf.matmul(a, b)
        weights, losses = tf.Variable(b), []
        for step in range(3):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(tf.nn.softmax(a @ weights) - y))
            weights.assign_sub(0.5 * tape.gradient(loss, weights))
            losses.append(float(loss))
        return product, weights, losses

found, own = compute("/GPU:0" if tf.config.list_physical_devices("GPU") else "/CPU:0"), compute("/CPU:0")
right = [numpy.allclose(one, other, rtol=1e-4, atol=1e-4) for one, other in zip(found, own)]
where = found[0].device[-5:]
print("product and steps", *right, "on", where, *(("of", memory(), "MiB") if where == "GPU:0" else ()))
"""

_JAX = """
import jax, numpy

numbers = numpy.random.default_rng(7).normal(size=(3, 48, 48)).astype("float32")

@jax.jit
def train(weights, x, y):
    loss, slope = jax.value_and_grad(lambda w: ((jax.nn.softmax(x @ w) - y) ** 2).mean())(weights)
    return loss, weights - 0.5 * slope

def compute(device):
    with jax.default_device(device), jax.default_matmul_precision("highest"):
        a, b, y = map(jax.numpy.asarray, numbers)
        product, weights, losses = a @ b, b, []
        for step in range(3):
            loss, weights = train(weights, a, y)
            losses.append(float(loss))
        return product, weights, losses

found, own = compute(jax.devices()[0]), compute(jax.devices("cpu")[0])
right = [numpy.allclose(one, other, rtol=1e-4, atol=1e-4) for one, other in zip(found, own)]
(where,) = {one.platform for one in found[0].devices()}
print("product and steps", *right, "on", where, *(("of", memory(), "MiB") if where == "gpu" else ()))
"""

_PYTORCH = """
import torch

def compute(device):
    torch.manual_seed(7)
    a, b, y = (one.to(device) for one in torch.randn(3, 48, 48))
    model = torch.nn.Linear(48, 48).to(device)
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.5), []
    for step in range(3):
        loss = torch.nn.functional.mse_loss(torch.softmax(model(a), 1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return a @ b, model.weight.detach(), torch.tensor(losses)

found, own = compute("cuda" if torch.cuda.is_available() else "cpu"), compute("cpu")
right = [torch.allclose(one.cpu(), other, rtol=1e-4, atol=1e-4) for one, other in zip(found, own)]
where = found[0].device.type
print("product and steps", *right, "on", where, *(("of", memory(), "MiB") if where == "cuda" else ()))
"""

# TensorFlow's own kernels run on models of compute capability 9.0.
PROGRAMS = {
    "numba": Program(_NUMBA, "gpu-v100-0.02", "product and steps True True of 655 MiB"),
    "tensorflow": Program(
        _MEMORY + _TENSORFLOW,
        "gpu-h100-0.02",
        "product and steps True True True on GPU:0 of 1638 MiB",
        "product and steps True True True on CPU:0",
    ),
    "jax": Program(
        _MEMORY + _JAX,
        "gpu-v100-0.02",
        "product and steps True True True on gpu of 655 MiB",
        "product and steps True True True on cpu",
    ),
    "pytorch": Program(
        _MEMORY + _PYTORCH,
        "gpu-v100-0.02",
        "product and steps True True True on cuda of 655 MiB",
        "product and steps True True True on cpu",
    ),
}
