"""cuDNN computes what NumPy does, beside the simulated GPU in one process and from a slice; what it lacks is refused by name."""

from __future__ import annotations

from tests.native.libraries import cudnn_call_cases, cudnn_cases, cudnn_recurrent_cases
from tests.native.libraries.conftest import NEEDS_OPENBLAS, both_ways, found_by
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
