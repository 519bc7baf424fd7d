"""JAX's and TensorFlow's own test files, on a slice of a simulated H100.

JAX's are those of its release.  TensorFlow's repository is too large to be fetched for some files; two plugins for devices of
other makers keep copies of them, which are run here as they are.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.frameworks.sources import JAX, TENSORFLOW
from tests.suites.git import checkout
from tests.suites.repositories import JAX as JAX_VERSION
from tests.suites.repositories import _checkout
from tests.suites.runner import Suite
from tests.suites.sources import Source, _kept, _pip

# How many of the cases of each test are taken; JAX takes the same ones every time.
JAX_CASES = os.environ.get("JAX_NUM_GENERATED_CASES", "2")


def jax() -> Source:
    """JAX's release and the tests of its repository, in single precision and with the flags that a slice's environment has."""
    tests = _checkout("jax-ml/jax", "tests") / "tests"
    with _kept("jax-test-needs") as (needs, fresh):
        if fresh:
            _pip("install", "--no-deps", "--target", needs, "absl-py==2.5.1")
    paths = os.pathsep.join([str(JAX.site()), str(needs)])
    return Source(JAX_VERSION, tests, environment={"PYTHONPATH": paths, "JAX_NUM_GENERATED_CASES": JAX_CASES})


def tensorflow() -> Source:
    """TensorFlow's release and tests of its repository, as Microsoft's plugin for DirectML keeps them (`test/ops`)."""
    repository = checkout("microsoft/tensorflow-directml-plugin", "6c3e918359", "test/ops")
    return _tensorflow(repository / "test" / "ops")


def tensorflow_linear_algebra() -> Source:
    """Likewise, as Intel's plugin keeps them: linear algebra, Fourier transforms and CTC are among these."""
    repository = checkout("intel/intel-extension-for-tensorflow", "e26b4db83c", "test/tensorflow")
    return _tensorflow(repository / "test" / "tensorflow" / "python" / "kernel_tests")


def _tensorflow(tests: Path) -> Source:
    # Some share a module that lies beside them.
    environment = {"PYTHONPATH": os.pathsep.join([str(TENSORFLOW.site()), str(tests)])}
    version = TENSORFLOW.name.rpartition("-")[2]
    return Source(version, tests, "tests.suites.tensorflow_fixtures", environment)


JAX_TESTS = Suite(
    "jax",
    jax,
    (
        "fft_test",
        "lax_autodiff_test",
        "lax_control_flow_test",
        "lax_numpy_reducers_test",
        "lax_numpy_test",
        "lax_scipy_test",
        "lax_test",
        "linalg_test",
        "nn_test",
        "random_lax_test",
        "sparse_test",
    ),
    simulate="h100:1",
)

# Written for TensorFlow 2.10 and NumPy 1.
_TENSORFLOW_KNOWN = {
    "ConcatOpTest.testConcatEmpty": "takes an empty array for a truth value, which NumPy 2 refuses",
    "CumsumTest.testLarge": "NumPy's running sum of a thousandth in half precision stops at 2; the kernel adds up blocks",
    "Conv2DTransposeTest.testConv2DTransposeShapeInference": "calls `array_ops.stack`, which TensorFlow has moved",
    "MatMulInfixOperatorTest.testMismatchedShape": "expects the sentence of an earlier TensorFlow",
    "PoolingTest.testMaxPoolGrad": "calls `numpy.asfarray`, which NumPy 2 has no more",
    "GatherTest.testGatherResourceVariable": "asks for the name of an operation in a graph, which TensorFlow has changed",
}

TENSORFLOW_TESTS = Suite(
    "tensorflow",
    tensorflow,
    (
        "argmax_op_test",
        "bias_op_test",
        "concat_op_test",
        "conv2d_transpose_test",
        "gather_op_test",
        "lrn_op_test",
        "matmul_op_test",
        "pad_op_test",
        "pooling_ops_test",
        "reduction_ops_test",
        "relu_op_test",
        "scan_ops_test",
        "segment_reduction_ops_test",
        "topk_op_test",
        "transpose_op_test",
        "xent_op_test",
    ),
    known=_TENSORFLOW_KNOWN,
    simulate="h100:1",
)

# Of Intel's plugin, whose devices are called XPU.
_LINEAR_ALGEBRA_KNOWN = {
    f"CTCLossTestV2.{name}": "wants a device of the plugin's own kind"
    for name in ("testScan", "testScanMultipleAccumulators", "testScanMultipleElements")
}

TENSORFLOW_LINEAR_ALGEBRA = Suite(
    "tensorflow-linear-algebra",
    tensorflow_linear_algebra,
    (
        "ctc_loss_op_test",
        "onemkl/cholesky_op_test",
        "onemkl/fft_ops_test",
        "onemkl/lu_op_test",
        "onemkl/matrix_inverse_op_test",
        "onemkl/matrix_solve_op_test",
        "onemkl/qr_op_test",
        "onemkl/self_adjoint_eig_op_test",
        "onemkl/svd_op_test",
    ),
    known=_LINEAR_ALGEBRA_KNOWN,
    simulate="h100:1",
)
