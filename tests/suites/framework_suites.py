"""The suites of array frameworks that compile for the driver themselves, what of them fails, and why."""

from __future__ import annotations

from tests.suites import repositories
from tests.suites.runner import Suite

_NEWER_TORCH = (
    "PyTorch 2.14 answers otherwise than tinygrad 0.13 expects; the same without a GPU (DEV=PYTHON)"
)

_CLANG = "compiles for tinygrad's own CPU device, which takes clang and nothing else, where there is none"

_TINYGRAD_KNOWN = {
    "TestOps.test_clip": _NEWER_TORCH,
    "TestOps.test_pad_replicate_mode": _NEWER_TORCH,
    "TestTinygrad.test_tensor_from_blob": _CLANG,
    "TestZeroShapeTensor.test_clone_deviceless_const_to_cpu": _CLANG,
    "TestZeroShapeTensor.test_numpy_deviceless_const": _CLANG,
    "TestTensorCreationDevice.test_one_hot": _CLANG,
}

TINYGRAD_C = Suite(
    "tinygrad",
    repositories.tinygrad_c,
    ("test_ops", "test_tensor"),
    known=_TINYGRAD_KNOWN,
    together=True,
    simulate="h100:1",
)
TINYGRAD_PTX = Suite(
    "tinygrad-ptx",
    repositories.tinygrad_ptx,
    ("test_ops", "test_tensor"),
    known=_TINYGRAD_KNOWN,
    together=True,
    simulate="h100:1",
)

_OPTIX = "needs OptiX, NVIDIA's ray tracer, which no slice has"
_LARGE = "matrices of 2048 × 2048 and more: minutes on a simulated GPU"

_DRJIT_KNOWN = {
    "test_freeze.test71_texture": _OPTIX,
    "test_nn.test06_tensor_vs_coopvec_parity": _OPTIX,
    "test_freeze.test96_coop_vec": _OPTIX,
    "test_freeze.test97_coop_vec_bwd": _OPTIX,
    "test_nn.test07_layer_mode_consistency": _OPTIX,
    "test_nn.test08_encode_mode_parity": _OPTIX,
    "test_nn.test09_muon_cross_mode_consistency": _OPTIX,
    "test_reorder.test01_reorder_loop": _OPTIX,
}

# Hopper is not among its devices: on compute capability 9.0 this release ends the process where it should say that
# it cannot reduce half-precision numbers.  Not here are cooperative vectors, which are OptiX's, the compiled
# extensions, which no wheel has, and what takes many minutes on a simulated GPU (local arrays, scatters).
DRJIT = Suite(
    "drjit",
    repositories.drjit,
    (
        "test_annotations",
        "test_arithmetic",
        "test_assert",
        "test_ast",
        "test_autodiff",
        "test_batched_gemm",
        "test_color",
        "test_complex",
        "test_conversion",
        "test_dda",
        "test_event",
        "test_format",
        "test_freeze",
        "test_func",
        "test_hashgrid",
        "test_history",
        "test_if_stmt",
        "test_if_stmt_ad",
        "test_indexing",
        "test_init",
        "test_matrix",
        "test_nn",
        "test_opt",
        "test_promote",
        "test_quaternion",
        "test_rand",
        "test_reduction",
        "test_reorder",
        "test_switch",
        "test_traits",
        "test_while_loop",
        "test_while_loop_ad",
        "test_wrap",
    ),
    known=_DRJIT_KNOWN,
    left_out={"test_batched_gemm.test04_matmul_large": _LARGE},
    together=True,
    simulate="a100:1",
)

DRJIT_PART = Suite(
    "drjit",
    repositories.drjit,
    ("test_complex", "test_event", "test_if_stmt", "test_while_loop"),
    known=_DRJIT_KNOWN,
    together=True,
    simulate="a100:1",
)

_TWO_ORDERS = (
    "adds random numbers in single precision in two orders: one run in a hundred fails, in NumPy as well"
)
_NO_SHARED_MEMORY = "Taichi 1.7.4 launches a kernel with a large shared array and gives it no shared memory"

# A part that has something of every kind of kernel: each test compiles Taichi's runtime anew.
TAICHI = Suite(
    "taichi",
    repositories.taichi,
    (
        "test_abs",
        "test_atomic",
        "test_bit_operations",
        "test_cast",
        "test_compare",
        "test_f16",
        "test_print",
        "test_random",
        "test_reduction",
        "test_shared_array",
        "test_simt",
        "test_sparse_basics",
        "test_while",
    ),
    known={"test_shared_array.test_multiple_shared_array": _TWO_ORDERS},
    left_out={"test_shared_array.test_large_shared_array": _NO_SHARED_MEMORY},
    together=True,
    simulate="h100:1",
)
