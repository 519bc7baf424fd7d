"""A residual network on random images, with PyTorch; prints images a second as JSON.

``python -m benchmarks.subjects.resnet [--network resnet110|resnet18] [--steps N] [--batch N] [--device cuda|cpu]``.  The networks are those of
He, Zhang, Ren and Sun (2015): of section 4.2, with three stages of 18 blocks with 16, 32 and 64 channels for images of CIFAR-10's shape;
of table 1, with four stages of two blocks for images of 224 × 224.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions with a shortcut around them."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = after // before
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(after) for _ in range(2))
        self.stride, self.more = stride, after - before

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norms[0](self.first(x)))
        y = self.norms[1](self.second(y))
        if self.more:  # the shortcut without parameters: every second pixel, and empty channels
            x = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
        return torch.relu(x + y)


def resnet110() -> nn.Module:
    """Return the network, for images of 3 × 32 × 32 and ten classes."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    before = 16
    for channels in (16, 32, 64):
        for _ in range(18):
            layers.append(Block(before, channels))
            before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class WideBlock(nn.Module):
    """Two convolutions with a shortcut that is a convolution where the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(after) for _ in range(2))
        same = stride == 1 and before == after
        around = nn.Conv2d(before, after, 1, stride, bias=False)
        self.shortcut = nn.Identity() if same else nn.Sequential(around, nn.BatchNorm2d(after))

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + self.shortcut(x))


def resnet18() -> nn.Module:
    """Return the network, for images of 3 × 224 × 224 and a thousand classes."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    shapes = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    blocks = [
        block
        for before, after, stride in shapes
        for block in (WideBlock(before, after, stride), WideBlock(after, after, 1))
    ]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


NETWORKS = {"resnet110": (resnet110, 32, 10), "resnet18": (resnet18, 224, 1000)}
"""By name: what makes it, the side of its images and the number of their classes."""


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--network", choices=NETWORKS, default="resnet110")
    words.add_argument("--steps", type=int, default=40)
    words.add_argument("--batch", type=int, default=128)
    words.add_argument("--device", default="cuda")
    options = words.parse_args()
    torch.manual_seed(0)
    device = torch.device(options.device)
    made, side, kinds = NETWORKS[options.network]
    network = made().to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    images = torch.randn(options.batch, 3, side, side, device=device)
    classes = torch.randint(0, kinds, (options.batch,), device=device)

    def step() -> Any:
        loss = nn.functional.cross_entropy(network(images), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def done() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(5 if device.type == "cuda" else 1):
        step()
    done()
    start = time.perf_counter()
    for _ in range(options.steps):
        step()
    done()
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    losses = [step().item() for _ in range(options.steps)]
    reading = time.perf_counter() - start
    parameters = sum(p.numel() for p in network.parameters())
    peak = torch.cuda.max_memory_reserved() if device.type == "cuda" else 0
    print(
        json.dumps(
            {
                "images_per_second": options.batch * options.steps / seconds,
                "images_per_second_losses_read": options.batch * options.steps / reading,
                "last_loss": losses[-1],
                "parameters": parameters,
                "peak_bytes": peak,
            }
        )
    )


if __name__ == "__main__":
    main()
