"""IREE's modules: its compiler makes PTX of them, and its runtime launches them through the driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from iree import runtime
from iree.compiler import compile_str

RANDOM = np.random.default_rng(1)

PRODUCT = """func.func @f(%a: tensor<64x32xf32>, %b: tensor<32x48xf32>) -> tensor<64x48xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<64x48xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<64x48xf32>) -> tensor<64x48xf32>
  %out = linalg.matmul ins(%a, %b : tensor<64x32xf32>, tensor<32x48xf32>) outs(%zeros : tensor<64x48xf32>) -> tensor<64x48xf32>
  return %out : tensor<64x48xf32>
}"""
ELEMENTS = """func.func @f(%a: tensor<1000xf32>, %b: tensor<1000xf32>) -> tensor<1000xf32> {
  %x = arith.mulf %a, %b : tensor<1000xf32>
  %y = math.exp %x : tensor<1000xf32>
  return %y : tensor<1000xf32>
}"""


def result(source: str, *arguments: np.ndarray[Any, Any]) -> Any:
    image = compile_str(source, target_backends=["cuda"], extra_args=["--iree-cuda-target=sm_80"])
    context = runtime.SystemContext(config=runtime.Config("cuda"))
    context.add_vm_module(runtime.VmModule.copy_buffer(context.instance, image))
    return context.modules.module.f(*arguments).to_host()


@pytest.mark.parametrize("source", [PRODUCT, ELEMENTS], ids=["product", "elements"])
def test_a_module(source: str) -> None:
    if source is PRODUCT:
        a, b = RANDOM.random((64, 32), dtype=np.float32), RANDOM.random((32, 48), dtype=np.float32)
        np.testing.assert_allclose(result(source, a, b), a @ b, rtol=1e-2)  # tf32
    else:
        a, b = RANDOM.random((2, 1000), dtype=np.float32)
        np.testing.assert_allclose(result(source, a, b), np.exp(a * b), rtol=1e-5)
