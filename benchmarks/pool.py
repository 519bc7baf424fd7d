"""Pools and leases for the benchmarks: real ones, started for one measurement."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from benchmarks.report import Table
from gpukernel.client.pool import PoolClient, resolve_address
from gpukernel.common.model import Holder, Lease, SliceRequest
from gpukernel.embedded import EmbeddedPool
from gpukernel.remoting.environment import shim_environment
from gpukernel.remoting.lease_file import write_lease_file


@contextlib.asynccontextmanager
async def pool_running(*options: str) -> AsyncIterator[EmbeddedPool]:
    """Run a pool with one simulated V100, which this process's environment points at."""
    with (
        EmbeddedPool("v100:1", tcp_host="127.0.0.1", options=options) as pool,
        mock.patch.dict(os.environ, {"GPUKERNEL_STATE": str(pool.state)}),
    ):
        yield pool


@contextlib.asynccontextmanager
async def leased(
    share: float, count: int = 1, transport: str = "", options: tuple[str, ...] = ()
) -> AsyncIterator[dict[str, str]]:
    """Hold `count` leases of `share`, and yield the environment of a program under the shim on the last of them.

    `transport` ``"unix"``, ``"tcp"`` or ``"tls"`` leaves only endpoints of that kind; `options` are the agent's.
    """
    options = (*options, "--data-tls", "on") if transport == "tls" else options
    async with pool_running(*options) as pool, contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(PoolClient(resolve_address(None, pool.state)))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number in range(count):
            lease = await client.acquire_now(
                f"benchmark {number}", SliceRequest(share=share), Holder("benchmark")
            )
            await stack.enter_async_context(client.keep_alive(lease))
        write_lease_file(folder / "lease", only(lease, transport))
        yield shim_environment(folder / "lease", os.environ)


def only(lease: Lease, transport: str) -> Lease:
    """Return the lease with endpoints of that kind alone; all of them for an empty one."""
    slices = tuple(
        replace(piece, endpoints=tuple(e for e in piece.endpoints if e.startswith(transport)))
        for piece in lease.slices
    )
    return replace(lease, slices=slices)


@dataclass(frozen=True)
class Memory:
    """Bytes of one process: proportional and resident set size."""

    pss: int
    rss: int


def workers() -> set[int]:
    """Return the process ids of every worker on this machine."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if Path(os.readlink(process / "exe")).name == "gpukernel-worker":
                found.add(int(process.name))
    return found


def worker_memory() -> list[Memory]:
    """Return the memory of every worker on this machine."""
    found = []
    for process in workers():
        with contextlib.suppress(OSError):
            fields = {}
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]:
                name, value, *_ = line.split()
                fields[name] = int(value) * 1024
            found.append(Memory(fields["Pss:"], fields["Rss:"]))
    return found


async def measure() -> list[Table]:
    """Return the pool's own figures."""
    from benchmarks import decisions

    return await decisions.measure()
