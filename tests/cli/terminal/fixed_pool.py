"""``gpukernel WORDS…``, asking a pool that always answers the same: ``python -m tests.cli.terminal.fixed_pool [WORDS…] [-- WORDS…]``."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpukernel.common.model import Device, Holder, Lease, Slice, SliceRequest, Usage, Waiting

GIB, MIB = 2**30, 2**20
V100, H100 = "Tesla V100-SXM2-32GB (simulated)", "NVIDIA H100 80GB HBM3"


class FixedPool:
    """The answers: two servers, one device that is out of order, leases with long and with wide names, and somebody who waits."""

    _now = time.time()

    async def devices(self) -> list[Device]:
        return [
            Device(
                "gpu1/0",
                "gpu1",
                0,
                V100,
                32 * GIB,
                17039 * MIB,
                2,
                compute_capability="7.0",
                multiprocessors=80,
            ),
            Device(
                "gpu1/1", "gpu1", 1, V100, 32 * GIB, 16 * GIB, 1, compute_capability="7.0", multiprocessors=80
            ),
            Device("gpu2/0", "gpu2", 0, H100, 80 * GIB, 0, 0, False, "the fan rattles"),
        ]

    async def leases(self, include_ended: bool = False) -> tuple[list[Lease], list[Waiting]]:
        found = [
            self._lease(
                "3f2a91b7",
                70,
                Holder("anna", "hub", "ml101", "02-classification.ipynb"),
                (0, 655, 120, 184_023),
            ),
            self._lease(
                "77c0ffee",
                47_520,
                Holder("student-with-a-long-name", "gpu1", "", "python train.py --epochs 10 --lr 0.1"),
                (0, 16_384, 9000, 1_840_233),
                (1, 16_384, 9000, 22),
            ),
            self._lease(
                "5b0e1d2c",
                1980,
                Holder("李小龙", "hub", "深度学习", "作业三：矩阵乘法.ipynb"),
                (1, 3276, 0, 0),
            ),
            self._lease("666c6167", 300, Holder("eve", "hub", "", "x\x1b[31m\ny"), (1, 100, 0, 7)),
        ]
        request = SliceRequest(0.5, None, 1, "V100")
        waiting = Waiting(
            "k1", Holder("ben", "hub", "ml101", "05-attention.ipynb"), request, 1, self._now - 70
        )
        return found, [waiting]

    def _lease(self, beginning: str, age: float, holder: Holder, *pieces: tuple[int, int, int, int]) -> Lease:
        slices = tuple(
            Slice(
                f"gpu1/{index}",
                "gpu1",
                index,
                V100,
                32 * GIB,
                mib * MIB,
                usage=Usage(used * MIB, used * MIB, calls, gpu_seconds=12.5),
            )
            for index, mib, used, calls in pieces
        )
        created, until = self._now - age, self._now + 30
        return Lease(
            f"{beginning}{'0' * 24}", "k", holder, slices, "live", created, until, 30, 1, secret="s3cret"
        )


def ask_fixed_pool(pool: str | None, state: Path | None, call: Callable[[Any], Awaitable[Any]]) -> Any:
    async def ask() -> Any:
        return await call(FixedPool())

    return asyncio.run(ask())


def main() -> None:
    from gpukernel.cli import tables
    from gpukernel.cli.app import app
    from gpukernel.cli.terminal import output, usage

    tables.ask_pool = ask_fixed_pool
    output.time = SimpleNamespace(time=lambda: FixedPool._now)  # type: ignore[assignment]
    words = sys.argv[1:]
    while words:
        one = words[: words.index("--")] if "--" in words else words
        words = words[len(one) + 1 :]
        sys.argv = ["gpukernel", *one]
        print(f"$ gpukernel {' '.join(one)}", flush=True)
        with contextlib.suppress(SystemExit):
            usage.run(app)


if __name__ == "__main__":
    main()
