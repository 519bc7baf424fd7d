"""Uses of PyTorch's memory by expandable segments or without, as ``PYTORCH_ALLOC_CONF`` says: each step checks itself.  Prints JSON.

``python pytorch_expandable.py`` on a slice of a few gigabytes, with a kernel of Triton's between operators.
"""

from __future__ import annotations

import gc
import json
import os
from typing import Any

import torch
from pytorch_training import Reverser, train
from torch import nn
from torch.nn import functional

MIB = 1 << 20
WANTED = "expandable_segments:True" in os.environ.get("PYTORCH_ALLOC_CONF", "")


def kinds() -> set[bool]:
    """Tell of the segments that there are whether they are expandable."""
    return {one["is_expandable"] for one in torch.cuda.memory_snapshot()}


def trained() -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.Flatten())
    model = nn.Sequential(model, nn.Linear(8192, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses = []
    x, y = torch.randn(256, 3, 32, 32, device="cuda"), torch.randint(0, 10, (256,), device="cuda")
    for _ in range(10):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.manual_seed(1)
    reverser = Reverser().cuda()
    words = [torch.randint(0, 16, (64, 12)) for _ in range(20)]
    adam = torch.optim.AdamW(reverser.parameters(), lr=3e-3)
    return losses + train(reverser, adam, [(x, x.flip(1)) for x in words], "cuda")[0]


def holes(kernel: Any) -> list[float]:
    """Give back what lies between tensors, and use both with the processor, with a kernel, and by copies."""
    count = 15 * MIB + 5  # floats: wherever they begin, two pieces of a segment have nothing else
    whole = torch.arange(float(count))
    first, middle, last = whole.cuda(), torch.full((count,), 7.0, device="cuda"), (2 * whole).cuda()
    before = torch.cuda.memory_reserved()
    del middle
    gc.collect()
    torch.cuda.empty_cache()
    assert before - torch.cuda.memory_reserved() >= 40 * MIB
    assert torch.equal(first.cpu(), whole)
    assert torch.equal(kernel(first, last).cpu(), 3 * whole + 1)  # on the device
    first += 1
    assert torch.equal(last.cpu(), 2 * whole)
    again = torch.zeros(2 * count, device="cuda")  # where the hole was, and more
    again[count // 2 : count // 2 + count].copy_(last)
    assert torch.equal(kernel(first, first).cpu(), 2 * whole + 3)
    again += kernel(again, again)
    host = torch.empty(2 * count).pin_memory()
    host.copy_(again, non_blocking=True)
    torch.cuda.synchronize()
    return [host.double().sum().item(), first.double().sum().item(), again.double().sum().item()]


def out_of_memory() -> list[float]:
    """Take 64 MiB at a time until there is no more, then less; return what could be had of all."""
    total = torch.cuda.mem_get_info()[1]
    blocks: list[Any] = []
    try:
        while len(blocks) * 64 * MIB <= total:
            blocks.append(torch.full((16 * MIB,), float(len(blocks)), device="cuda"))
    except torch.cuda.OutOfMemoryError:
        pass
    else:
        raise AssertionError("more than the slice was allocated")
    taken = len(blocks) * 64 * MIB / total
    assert torch.cuda.memory_reserved() <= total
    del blocks[1:3]
    assert (torch.ones(8 * MIB, device="cuda") + 1).sum().item() == 16 * MIB  # a smaller step
    numbers = [block[::4096].unique().tolist() for block in blocks]
    assert numbers == [[0.0], *([float(one)] for one in range(3, len(blocks) + 2))]
    return [taken]


def main() -> None:
    kernel = torch.compile(lambda a, b: a + b + 1)
    results = {"losses": trained(), "holes": holes(kernel)}
    torch.cuda.synchronize()
    assert kinds() == {WANTED}
    results["out of memory"] = out_of_memory()
    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    assert free >= total - 64 * MIB, (free, total)
    results["again"] = trained()
    assert kinds() == {WANTED}
    print(json.dumps({"expandable": WANTED, "results": results}))


if __name__ == "__main__":
    main()
