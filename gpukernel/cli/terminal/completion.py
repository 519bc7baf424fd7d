"""The candidates with which shells complete leases, servers, devices, models, deciders and kernels.

A pool that does not answer within `PATIENCE` seconds has none: whoever presses Tab is told nothing, and waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from gpukernel.common.model import Device, Lease

__all__ = ["deciders", "devices", "engines", "held_leases", "kernels", "lease_ids", "models", "servers"]

PATIENCE = 1.0

Candidates = list[tuple[str, str]]


def _of_the_pool(
    ctx: typer.Context, names: Callable[[list[Device], list[Lease]], Iterable[tuple[str, str]]]
) -> Candidates:
    async def ask() -> tuple[list[Device], list[Lease]]:
        from gpukernel.client.pool import PoolClient, resolve_address

        async with PoolClient(resolve_address(ctx.params.get("pool"), ctx.params.get("state"))) as client:
            client.patience = PATIENCE
            leases, _ = await client.leases()
            return await client.devices(), leases

    try:
        return list(dict.fromkeys(names(*asyncio.run(ask()))))
    except Exception:  # of whatever kind: nothing may be written while a line is being edited
        return []


def servers(ctx: typer.Context, incomplete: str) -> Candidates:
    """Return the GPU servers of the pool."""
    return _of_the_pool(ctx, lambda devices, _: ((one.server, "") for one in devices))


def devices(ctx: typer.Context, incomplete: str) -> Candidates:
    """Return the devices of the pool, with their models."""
    return _of_the_pool(ctx, lambda devices, _: ((one.id, one.name) for one in devices))


def engines(incomplete: str) -> Candidates:
    """Return the engines that may place leases."""
    from gpukernel.common.model import ENGINES

    return [(name, "") for name in ENGINES]


def deciders(incomplete: str) -> Candidates:
    """Return who may decide over a device: the pool, and the engines."""
    return [("pool", "takes the device back"), *engines(incomplete)]


def models(ctx: typer.Context, incomplete: str) -> Candidates:
    """Return the words of the devices' names, such as ``V100-SXM2-32GB``."""
    return _of_the_pool(
        ctx,
        lambda devices, _: ((word, "") for one in devices for word in one.name.split() if word[0].isalnum()),
    )


def lease_ids(ctx: typer.Context, incomplete: str) -> Candidates:
    """Return the leases that the pool shows, with what they are for."""
    return _of_the_pool(
        ctx, lambda _, leases: ((one.id[: max(8, len(incomplete))], one.holder.description) for one in leases)
    )


def held_leases(ctx: typer.Context, incomplete: str) -> Candidates:
    """Return the leases that “gpukernel request” holds for this user."""
    from gpukernel.common.account import state_in_home
    from gpukernel.common.errors import PoolError

    try:
        found = sorted(state_in_home("gpukernel-held", "").glob("*.lease"))
    except (PoolError, OSError):
        return []
    return [(path.stem[: max(8, len(incomplete))], "") for path in found]


def kernels(incomplete: str) -> Candidates:
    """Return the kernels on slices that Jupyter finds."""
    from gpukernel.jupyter import kernelspecs

    return [(spec.name, spec.display_name) for spec, _ in kernelspecs.installed()]
