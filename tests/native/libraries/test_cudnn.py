"""cuDNN computes what NumPy does, beside the simulated GPU in one process and from a slice; what it lacks is refused by name."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.libraries import (
    cudnn_attention_cases,
    cudnn_call_cases,
    cudnn_cases,
    cudnn_ctc_cases,
    cudnn_matmul_cases,
    cudnn_recurrent_cases,
)
from tests.native.libraries.conftest import NEEDS_OPENBLAS, ROOT, both_ways, found_by, in_one_process
from tests.native.libraries.test_on_a_slice import on_a_slice

pytestmark = NEEDS_OPENBLAS


@both_ways(cudnn_cases)
def test_cudnn(where: str, name: str) -> None:
    assert found_by(cudnn_cases.__name__, where)[name] == ""


@both_ways(cudnn_call_cases)
def test_functions_outside_of_the_backend_api(where: str, name: str) -> None:
    assert found_by(cudnn_call_cases.__name__, where)[name] == ""


@both_ways(cudnn_recurrent_cases)
def test_recurrent_layers(where: str, name: str) -> None:
    assert found_by(cudnn_recurrent_cases.__name__, where)[name] == ""


@both_ways(cudnn_matmul_cases)
def test_products_of_matrices_and_attention(where: str, name: str) -> None:
    assert found_by(cudnn_matmul_cases.__name__, where)[name] == ""


@both_ways(cudnn_attention_cases)
def test_attention_as_one_operation(where: str, name: str) -> None:
    assert found_by(cudnn_attention_cases.__name__, where)[name] == ""


@both_ways(cudnn_ctc_cases)
def test_connectionist_temporal_classification(where: str, name: str) -> None:
    assert found_by(cudnn_ctc_cases.__name__, where)[name] == ""


def test_handles_exist_and_what_is_not_there_is_refused_by_name() -> None:
    done = on_a_slice(
        """
n = ctypes.CDLL("libcudnn.so.9")
handle, stream = ctypes.c_void_p(), ctypes.c_void_p()
print(n.cudnnCreate(ctypes.byref(handle)), bool(handle.value))
print(n.cudnnSetStream(handle, ctypes.c_void_p(1)), n.cudnnGetStream(handle, ctypes.byref(stream)), stream.value)
print(n.cudnnSetStream(ctypes.c_void_p(4711), None), n.cudnnCreate(None))
print(n.cudnnMultiHeadAttnForward(handle), n.cudnnMultiHeadAttnForward(handle))
print(n.cudnnDestroy(handle), n.cudnnDestroy(handle))
"""
    )
    assert done.stdout.splitlines() == ["0 True", "0 0 1", "2000 2000", "3000 3000", "0 1001"], done.stderr
    assert done.stderr.count("cudnnMultiHeadAttnForward is not supported on a slice") == 1


def test_a_captured_convolution_is_a_node_that_outlives_its_descriptors() -> None:
    done = on_a_slice(
        """
from tests.native.libraries.cudnn import *
from tests.native.libraries.cudnn_cases import *
from tests.native.libraries.cudnn_cases import operation, parameters
n, p = Cudnn(), parameters(2, before=1)
s = ok(d.cuStreamCreate(1))
n.done('cudnnSetStream', ctypes.c_void_p(int(s)))
x, w = numbers((2, 4, 8, 8), np.float32), numbers((4, 4, 3, 3), np.float32)
y = np.zeros((2, 4, 8, 8), np.float32)
on = [Tensor(a) for a in (x, w, y)]
described = [n.of(t) for t in on]
plan = n.plan([operation(n, 'forward', [one for one, _ in described], p, np.float32, beta=1)])
ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
print(n.run(plan, {i: t.address for (_, i), t in zip(described, on)}))
graph = ok(d.cuStreamEndCapture(s))
print((on[2].get() == 0).all())
run = ok(d.cuGraphInstantiate(graph, 0))
for one in (plan[0], *(one for one, _ in described)): n.library.cudnnBackendDestroyDescriptor(one)
n.library.cudnnDestroy(n.handle)
for _ in range(3): ok(d.cuGraphLaunch(run, s))
ok(d.cuStreamSynchronize(s))
print(np.allclose(on[2].get(), 3 * convolved(x, w, p), rtol=1e-4, atol=1e-4))
"""
    )
    assert done.stdout.split() == ["0", "True", "True"], done.stdout + done.stderr


def test_a_graph_is_filled_with_a_plan_and_changed_to_other_tensors() -> None:
    done = on_a_slice(
        """
from tests.native.libraries.cudnn import *
from tests.native.libraries.cudnn_cases import *
from tests.native.libraries.cudnn_cases import operation, parameters
n, p = Cudnn(), parameters(2, before=1)
x, w = numbers((2, 4, 8, 8), np.float32), numbers((4, 4, 3, 3), np.float32)
y = np.zeros((2, 4, 8, 8), np.float32)
on = [Tensor(a) for a in (x, w, y)]
described = [n.of(t) for t in on]
plan = n.plan([operation(n, 'forward', [one for one, _ in described], p, np.float32, beta=1)])
where = {i: t.address for (_, i), t in zip(described, on)}
fill, change = n.library.cudnnBackendPopulateCudaGraph, n.library.cudnnBackendUpdateCudaGraph
graph = ok(d.cuGraphCreate(0))
at = ctypes.c_void_p(int(graph))
print(change(n.handle, plan[0], n.pack(plan, where), at), fill(n.handle, plan[0], n.pack(plan, where), None))
print(fill(n.handle, plan[0], n.pack(plan, where), at), int(ok(d.cuGraphGetNodes(graph, 0))[-1]), (on[2].get() == 0).all())
run, s = ok(d.cuGraphInstantiate(graph, 0)), ok(d.cuStreamCreate(1))
for _ in range(2): ok(d.cuGraphLaunch(run, s))
ok(d.cuStreamSynchronize(s))
print(np.allclose(on[2].get(), 2 * convolved(x, w, p), rtol=1e-4, atol=1e-4))
other = Tensor(y)
where[described[2][1]] = other.address
print(change(n.handle, plan[0], n.pack(plan, where), at), int(ok(d.cuGraphGetNodes(graph, 0))[-1]))
ok(d.cuGraphExecUpdate(run, graph))
n.library.cudnnDestroy(n.handle)
ok(d.cuGraphLaunch(run, s)); ok(d.cuStreamSynchronize(s))
print(*(np.allclose(t.get(), times * convolved(x, w, p), rtol=1e-4, atol=1e-4) for t, times in ((on[2], 2), (other, 1))))
"""
    )
    wanted = ["2000 2000", "0 1 True", "True", "0 1", "True True"]
    assert done.stdout.splitlines() == wanted, done.stdout + done.stderr


def test_convolutions_are_queued_and_keep_the_streams_order() -> None:
    done = on_a_slice(
        """
from tests.native.libraries.cudnn import *
from tests.native.libraries.cudnn_cases import operation, parameters
n, p = Cudnn(), parameters(2, before=1)
on = [Tensor(a) for a in (np.ones((8, 32, 64, 64), np.float32), np.zeros((32, 32, 3, 3), np.float32), np.zeros((8, 32, 64, 64), np.float32))]
described = [n.of(t) for t in on]
plan = n.plan([operation(n, 'forward', [one for one, _ in described], p, np.float32)])
where = {i: t.address for (_, i), t in zip(described, on)}
n.run(plan, where); ok(d.cuCtxSynchronize())
start = time.perf_counter()
for _ in range(20): assert n.run(plan, where) == 0
queued = time.perf_counter() - start
ok(d.cuCtxSynchronize()); whole = time.perf_counter() - start
print(queued < whole / 4, queued, whole)
"""
    )
    assert done.stdout.startswith("True"), done.stdout + done.stderr


def nvidias() -> Path:
    """Return NVIDIA's libcudnn.so.9: of the wheel nvidia-cudnn-cu12, or what GPUKERNEL_CUDNN_LIBRARY names."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(place, "cudnn/lib") for place in (spec.submodule_search_locations or [] if spec else [])]
    named = os.environ.get("GPUKERNEL_CUDNN_LIBRARY")
    for library in [Path(named)] if named else [folder / "libcudnn.so.9" for folder in folders]:
        if library.exists():
            return library
    pytest.skip(
        "NVIDIA's cuDNN is not installed (wheel nvidia-cudnn-cu12, 700 MB; or GPUKERNEL_CUDNN_LIBRARY=FILE)"
    )


def test_nvidias_library_takes_descriptors_as_the_worker_makes_them() -> None:
    """Make them by its public functions, which need no device, with the attributes in the order of their names."""
    library = nvidias()
    code = f"""
import ctypes
import numpy as np
from tests.native.libraries import cudnn
from tests.native.libraries.cudnn_cases import KINDS, operation, parameters
n = cudnn.Cudnn.__new__(cudnn.Cudnn)
n.library, n.ids = ctypes.CDLL({str(library)!r}, mode=ctypes.RTLD_GLOBAL), 0
node = cudnn.Cudnn.node
cudnn.Cudnn.node = lambda self, kind, attributes, finish=True: node(self, kind, dict(sorted(attributes.items())), finish)
x, w, y = (n.tensor(*shape, np.float32)[0] for shape in (((2, 3, 8, 8), (192, 64, 8, 1)), ((4, 3, 3, 3), (27, 9, 3, 1)), ((2, 4, 8, 8), (256, 64, 8, 1))))
value = n.tensor((1, 1, 1, 1), (1, 1, 1, 1), np.float32, by_value=True)[0]
between = n.tensor((2, 4, 8, 8), (256, 64, 8, 1), np.float32, virtual=True)[0]
for direction in KINDS:
    made = [operation(n, direction, [x, w, between if direction == 'forward' else y], parameters(2, before=1), np.float32)]
    if direction == 'forward':
        how = n.node(0, {{0: (14, 1), 1: (1, 0)}})
        made.append(n.node(13, {{750: (15, how), 751: (15, between), 752: (15, value), 753: (15, y)}}))
    n.node(15, {{801: (15, made)}})
summed = n.node(21, {{1600: (18, 0), 1601: (1, 0)}})
n.node(22, {{1612: (15, summed), 1610: (15, y), 1611: (15, n.tensor((1, 4, 1, 1), (4, 1, 1, 1), np.float32)[0])}})
whole = n.tensor((1, 1, 1, 1), (1, 1, 1, 1), np.int64, by_value=True)[0]
for distribution, about in ((0, {{2305: (5, 0.7)}}), (1, {{2303: (5, 1.0), 2304: (5, 0.0)}}), (2, {{2301: (5, 0.0), 2302: (5, 1.0)}})):
    how = n.node(32, {{2300: (29, distribution), **about}})
    for seed in ((15, whole), (3, 42)):
        n.node(33, {{2310: (15, between), 2311: seed, 2312: (15, how), 2313: (15, whole)}})
print('taken')
"""
    environment = in_one_process()
    others = [str(folder) for folder in library.parents[2].glob("*/lib")]
    environment["LD_LIBRARY_PATH"] = ":".join([environment["LD_LIBRARY_PATH"].split(":")[0], *others])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "taken", done.stdout + done.stderr
