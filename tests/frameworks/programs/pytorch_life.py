"""Uses of PyTorch beside its operators: each step checks itself and prints its name."""

from __future__ import annotations

import io
from typing import Any

import torch


def never_on_a_real_device() -> None:
    own, said = torch.cuda.get_device_name, ""
    torch.cuda.get_device_name = lambda *_: "NVIDIA H100"
    try:
        torch.ones(2, device="cuda") + 1
    except RuntimeError as error:
        said = str(error)
    finally:
        torch.cuda.get_device_name = own
    assert "NVIDIA H100 is a real GPU" in said


def memory() -> None:
    before = torch.cuda.memory_allocated()
    block = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - before == 8 << 20
    free, total = torch.cuda.mem_get_info()
    assert total - free >= 8 << 20
    del block
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] > free


def out_of_memory() -> None:
    try:
        torch.empty(2 * torch.cuda.mem_get_info()[1], dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        pass
    else:
        raise AssertionError("more than the slice was allocated")
    assert (torch.ones(1000, device="cuda") + 1).sum().item() == 2000


def random_state() -> None:
    state, mine = torch.cuda.get_rng_state(), torch.get_rng_state()
    first = torch.rand(5, device="cuda"), torch.nn.functional.dropout(torch.ones(100, device="cuda"))
    torch.cuda.set_rng_state(state)
    again = torch.rand(5, device="cuda"), torch.nn.functional.dropout(torch.ones(100, device="cuda"))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert not torch.equal(again[0], torch.rand(5, device="cuda"))
    assert torch.equal(mine, torch.get_rng_state())  # the CPU's numbers are its own
    torch.manual_seed(7)
    one = torch.randn(3, device="cuda")
    torch.manual_seed(7)
    assert torch.equal(one, torch.randn(3, device="cuda"))


def streams() -> None:
    x = torch.randn(1000, device="cuda")
    stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        y = x * 2
        event.record()
    torch.cuda.current_stream().wait_stream(stream)
    event.synchronize()
    assert torch.equal(y, x + x)


def copies() -> None:
    host = torch.randn(1000, 17).pin_memory()
    there = host.to("cuda", non_blocking=True)
    assert torch.equal(there.cpu(), host)
    assert torch.equal(there.t()[3:5].double().cpu(), host.t()[3:5].double())
    there[:, 3] = torch.arange(1000.0)
    host[:, 3] = torch.arange(1000.0)
    assert torch.equal(there.cpu(), host)
    file = io.BytesIO()
    torch.save(there, file)
    file.seek(0)
    assert torch.equal(torch.load(file), there)


def mixed_precision() -> None:
    model = torch.nn.Linear(64, 8).cuda()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(torch.randn(16, 64, device="cuda")).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert loss.item() > 0


def recurrent() -> None:
    for make in (torch.nn.LSTM, torch.nn.GRU):
        torch.manual_seed(0)
        here = make(12, 7, num_layers=2, batch_first=True, bidirectional=True)
        there = make(12, 7, num_layers=2, batch_first=True, bidirectional=True).cuda()
        there.load_state_dict(here.state_dict())
        x = torch.randn(3, 5, 12)
        results = []
        for model, device in ((here, "cpu"), (there, "cuda")):
            own = x.to(device, copy=True).requires_grad_()
            model(own)[0].square().sum().backward()
            results.append([own.grad.cpu(), *(one.grad.cpu() for one in model.parameters())])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def compiled() -> None:
    """Triton's kernels are PTX, and run on the device."""
    x = torch.randn(64, 128, device="cuda")
    result: Any = torch.compile(lambda a, b: torch.relu(a * 2 + b).sum(-1))(x, x)
    torch.testing.assert_close(result, torch.relu(x * 3).sum(-1), rtol=1e-4, atol=1e-3)


def graphs() -> None:
    graph, x = torch.cuda.CUDAGraph(), torch.ones(8, device="cuda")
    said = ""
    try:
        with torch.cuda.graph(graph):
            x * 2
    except NotImplementedError as error:
        said = str(error)
    assert "which a CUDA graph cannot record" in said
    assert (x + 1).sum().item() == 16


if __name__ == "__main__":
    steps = (
        never_on_a_real_device,
        memory,
        out_of_memory,
        random_state,
        streams,
        copies,
        mixed_precision,
        recurrent,
        graphs,
        compiled,
    )
    for step in steps:
        step()
        print(step.__name__, flush=True)
