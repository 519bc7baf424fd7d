"""Attention as NVIDIA's own frontend of cuDNN asks a new library for it, forward by one operation and back, compared with NumPy.  Prints JSON."""

from __future__ import annotations

import json
from typing import Any

import cudnn
import numpy as np
from cuda.bindings import driver

BATCH, HEADS, WIDTH, SCALE = 2, 4, 32, 0.2
RANDOM = np.random.default_rng(0)
Floats = np.ndarray[Any, Any]


def ok(result: tuple[Any, ...]) -> Any:
    """Return what a driver call returned, or fail with its error."""
    assert int(result[0]) == 0, result
    return result[1] if len(result) > 1 else None


class OnDevice:
    """An array on the device, and its tensor in a graph."""

    def __init__(self, graph: Any, host: Floats, kind: Any = None, transposed: bool = False) -> None:
        # Queries, keys and values lie as frameworks have them: all heads of one position beside each other.
        self.axes = (0, 2, 1, 3) if transposed else tuple(range(host.ndim))
        self.lying = np.ascontiguousarray(host.transpose(self.axes))
        self.address = int(ok(driver.cuMemAlloc(self.lying.nbytes)))
        ok(driver.cuMemcpyHtoD(self.address, self.lying.ctypes.data, self.lying.nbytes))
        steps = [one // host.itemsize for one in self.lying.strides]
        self.extents, self.strides = list(host.shape), [steps[i] for i in np.argsort(self.axes)]
        if graph is not None:
            self.tensor = graph.tensor(dim=self.extents, stride=self.strides, data_type=kind)

    def is_result(self, tensor: Any, kind: Any) -> None:
        """Be where a graph writes one of its tensors."""
        tensor.set_output(True).set_dim(self.extents).set_stride(self.strides).set_data_type(kind)
        self.tensor = tensor

    def get(self) -> Floats:
        """Return what is there now."""
        out = np.empty_like(self.lying)
        ok(driver.cuMemcpyDtoH(out.ctypes.data, self.address, out.nbytes))
        return out.transpose(np.argsort(self.axes)).astype(np.float64)


def graph_of(handle: Any) -> Any:
    """Return a graph of halves that computes in single precision."""
    return cudnn.pygraph(
        io_data_type=cudnn.data_type.HALF,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=handle,
    )


def execute(graph: Any, handle: Any, tensors: list[OnDevice]) -> None:
    """Plan a graph and run it."""
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A])
    graph.check_support()
    graph.build_plans()
    room = int(ok(driver.cuMemAlloc(max(graph.get_workspace_size(), 1))))
    graph.execute({one.tensor: one.address for one in tensors}, room, handle=handle)
    ok(driver.cuCtxSynchronize())


def softmax(scores: Floats) -> Floats:
    """Return the shares of each row, 0 where there is nothing."""
    largest = np.maximum(scores.max(-1, keepdims=True), -1e30)
    powers = np.exp(scores - largest)
    return powers / np.maximum(powers.sum(-1, keepdims=True), 1e-300)


def attention(
    handle: Any, queries: int, keys: int, of_keys: int, options: dict[str, Any], keep: Any
) -> dict[str, float]:
    """Compute attention and its gradients, and return how far each is from NumPy's."""
    half, single, whole = cudnn.data_type.HALF, cudnn.data_type.FLOAT, cudnn.data_type.INT32
    shapes = {"q": (BATCH, HEADS, queries), "k": (BATCH, of_keys, keys), "v": (BATCH, of_keys, keys)}
    host = {
        name: RANDOM.standard_normal((*shape, WIDTH)).astype(np.float16) for name, shape in shapes.items()
    }
    slopes = RANDOM.standard_normal(host["q"].shape).astype(np.float16)
    bias = (
        RANDOM.standard_normal((1, HEADS, queries, keys)).astype(np.float16) if options.get("bias") else None
    )
    lengths = options.get("lengths")
    words = {name: value for name, value in options.items() if name not in ("bias", "lengths")}

    def common(graph: Any) -> tuple[dict[str, Any], list[OnDevice]]:
        more, there = dict(words), []
        if bias is not None:
            there.append(OnDevice(graph, bias, half))
            more["bias"] = there[-1].tensor
        for name, each in zip(("seq_len_q", "seq_len_kv"), lengths or (), strict=False):
            there.append(OnDevice(graph, np.array(each, np.int32).reshape(BATCH, 1, 1, 1), whole))
            more |= {name: there[-1].tensor, "use_padding_mask": True}
        return more, there

    forward = graph_of(handle)
    given = {name: OnDevice(forward, one, half, transposed=True) for name, one in host.items()}
    more, there = common(forward)
    out = OnDevice(None, np.zeros(host["q"].shape, np.float16), transposed=True)
    sums = OnDevice(None, np.zeros((BATCH, HEADS, queries, 1), np.float32))
    inputs = {name: one.tensor for name, one in given.items()}
    result, statistics = forward.sdpa(**inputs, generate_stats=True, attn_scale=SCALE, **more)
    out.is_result(result, half)
    sums.is_result(statistics, single)
    execute(forward, handle, [*given.values(), *there, out, sums])

    q, k, v = (np.repeat(one.astype(np.float64), HEADS // one.shape[1], 1) for one in host.values())
    scores = q @ k.transpose(0, 1, 3, 2) * SCALE + (0 if bias is None else bias)
    rows, columns = np.arange(queries)[:, None], np.arange(keys)
    valid = np.ones((BATCH, 1, queries, 1))
    for i in range(BATCH):
        of_queries, of_the_keys = (one[i] for one in lengths) if lengths else (queries, keys)
        seen = (columns < of_the_keys) & keep(rows, columns)
        scores[i] = np.where(seen, scores[i], -np.inf)
        valid[i, :, of_queries:] = 0
    shares = softmax(scores) * valid
    wanted = shares @ v
    far = {"o": float(np.abs(out.get() - wanted).max())}
    back = graph_of(handle)
    again = {name: OnDevice(back, one, half, transposed=True) for name, one in host.items()}
    more, there = common(back)
    o, do = (OnDevice(back, one, half, transposed=True) for one in (wanted.astype(np.float16), slopes))
    stats = OnDevice(back, sums.get().astype(np.float32), single)
    gradients = {name: OnDevice(None, np.zeros_like(one), transposed=True) for name, one in host.items()}
    of_each = back.sdpa_backward(
        **{name: one.tensor for name, one in again.items()}, o=o.tensor, dO=do.tensor, stats=stats.tensor, attn_scale=SCALE, **more
    )  # fmt: skip
    for gradient, tensor in zip(gradients.values(), of_each, strict=True):
        gradient.is_result(tensor, half)
    execute(back, handle, [*again.values(), *there, o, do, stats, *gradients.values()])
    of_result = slopes * valid
    of_scores = (
        shares * (of_result @ v.transpose(0, 1, 3, 2) - (of_result * wanted).sum(-1, keepdims=True)) * SCALE
    )
    right = {
        "q": of_scores @ k,
        "k": of_scores.transpose(0, 1, 3, 2) @ q,
        "v": shares.transpose(0, 1, 3, 2) @ of_result,
    }
    for name in ("k", "v"):
        right[name] = right[name].reshape(BATCH, of_keys, HEADS // of_keys, keys, WIDTH).sum(2)
    return far | {f"d{name}": float(np.abs(gradients[name].get() - one).max()) for name, one in right.items()}


BELOW, BOTTOM = cudnn.diagonal_alignment.TOP_LEFT, cudnn.diagonal_alignment.BOTTOM_RIGHT
CASES: dict[str, tuple[int, int, int, dict[str, Any], Any]] = {
    "plain": (64, 96, 4, {}, lambda i, j: j >= 0),
    "grouped queries": (64, 64, 2, {}, lambda i, j: j >= 0),
    "causal": (64, 64, 4, {"use_causal_mask": True}, lambda i, j: i >= j),
    "bias": (64, 64, 4, {"bias": True}, lambda i, j: j >= 0),
    "window": (
        64, 64, 4, {"diagonal_alignment": BELOW, "diagonal_band_left_bound": 9, "diagonal_band_right_bound": 0},
        lambda i, j: (i >= j) & (j + 9 > i),
    ),
    "causal from the last key": (
        64, 128, 4, {"diagonal_alignment": BOTTOM, "diagonal_band_right_bound": 0}, lambda i, j: i + 64 >= j,
    ),
    "lengths": (64, 96, 4, {"lengths": ([50, 64], [30, 96])}, lambda i, j: j >= 0),
    "all together": (
        64, 96, 2, {"bias": True, "lengths": ([50, 64], [30, 96]), "use_causal_mask": True}, lambda i, j: i >= j,
    ),
}  # fmt: skip


def main() -> None:
    ok(driver.cuInit(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
    handle = cudnn.create_handle()
    far, failed = {}, {}
    for name, (queries, keys, of_keys, options, keep) in CASES.items():
        try:
            far[name] = attention(handle, queries, keys, of_keys, options, keep)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"[:2000]
    print(json.dumps({"version": cudnn.backend_version(), "far": far, "failed": failed}))


if __name__ == "__main__":
    main()
