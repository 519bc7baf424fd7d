"""PyTorch's `torch.distributed` over NCCL with one process: collectives, and a step of a model in parallel.  Checks itself."""

from __future__ import annotations

import tempfile

import torch
from torch import distributed as group
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        group.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1)
        x = torch.arange(5.0, device="cuda")
        gathered = torch.zeros(5, device="cuda")
        group.all_reduce(x)
        group.all_gather_into_tensor(gathered, x)
        group.broadcast(x, 0)
        model = DistributedDataParallel(torch.nn.Linear(5, 2).cuda())
        model(x[None]).sum().backward()
        torch.cuda.synchronize()
        assert x.tolist() == gathered.tolist() == [0, 1, 2, 3, 4]
        assert model.module.weight.grad.tolist() == [x.tolist()] * 2
        group.destroy_process_group()
    print("collected")


if __name__ == "__main__":
    main()
