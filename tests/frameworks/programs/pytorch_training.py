"""Twenty steps of ResNet-20 and of a two-layer transformer, on the slice or on the CPU.  Prints JSON.

``python pytorch_training.py cuda|cpu`` trains on images shaped as CIFAR-10's (random ones, of ten classes that differ) and on
sequences to be reversed.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional

STEPS, BATCH = 20, 64


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs) for _ in range(2)])
        self.around = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Any) -> Any:
        y = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(y)) + self.around(x))


def resnet20() -> nn.Module:
    blocks = [
        Block(
            16 if stage == 0 else 8 << stage if at == 0 else 16 << stage, 16 << stage, 1 + (at == 0 < stage)
        )
        for stage in range(3)
        for at in range(3)
    ]
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Reverser(nn.Module):
    """A transformer of two layers that names a sequence's elements backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 32)
        self.place = nn.Parameter(torch.randn(12, 32) * 0.1)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(32, 16)

    def forward(self, x: Any) -> Any:
        return self.last(self.layers(self.embedding(x) + self.place))


def train(model: nn.Module, optimizer: Any, batches: Any, device: str) -> tuple[list[float], float]:
    """Return the loss of each step, and batches a second after the first."""
    losses = []
    for number, (x, y) in enumerate(batches):
        if number == 1:
            begin = time.perf_counter()
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x.to(device)).flatten(0, -2), y.to(device).flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, (STEPS - 1) / (time.perf_counter() - begin)


def main(device: str) -> None:
    result = {}
    torch.manual_seed(0)
    model = resnet20().to(device)
    centres = torch.randn(10, 3, 32, 32) * 0.3
    classes = [torch.randint(0, 10, (BATCH,)) for _ in range(STEPS)]
    images = [(centres[y] + torch.randn(BATCH, 3, 32, 32), y) for y in classes]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    result["resnet20"] = train(model, optimizer, images, device)
    torch.manual_seed(1)
    model = Reverser().to(device)
    words = [torch.randint(0, 16, (BATCH, 12)) for _ in range(STEPS)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    result["transformer"] = train(model, optimizer, [(x, x.flip(1)) for x in words], device)
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
