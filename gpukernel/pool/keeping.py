"""The holder's end of the call that keeps leases alive."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpukernel.pool.forks import grpc  # before the messages import it

# isort: split
import gpukernel.pool.proto.pool_pb2 as pb
from gpukernel.pool import messages
from gpukernel.pool.errors import PoolError, PoolUnreachable
from gpukernel.pool.model import Lease

if TYPE_CHECKING:
    from gpukernel.pool.client import PoolClient

__all__ = ["Keeping"]

AGAIN_SECONDS = 1.0


@dataclass(frozen=True)
class _Kept:
    changed: Callable[[Lease], None]
    over: Callable[[str], None]


class Keeping:
    """Leases that live for as long as this process does, over one call for all of them.

    A pool that goes away is asked again: its database knows the leases still.
    """

    def __init__(self, client: PoolClient) -> None:
        self._client = client
        self._kept: dict[str, _Kept] = {}
        self._orders: asyncio.Queue[pb.HoldRequest] = asyncio.Queue()
        self._calling: asyncio.Task[None] | None = None

    def keep(self, lease_id: str, changed: Callable[[Lease], None], over: Callable[[str], None]) -> None:
        """Keep a lease alive.

        Parameters
        ----------
        changed
            Called with the lease, without its secret, at first and whenever it is different.
        over
            Called once with the reason when it has ended, or is kept no longer.
        """
        self._kept[lease_id] = _Kept(changed, over)
        self._orders.put_nowait(pb.HoldRequest(hold=[lease_id]))
        if self._calling is None or self._calling.done():
            self._calling = asyncio.create_task(self._call())

    def let_go(self, lease_id: str) -> None:
        """The lease has its time to live from now on."""
        if self._kept.pop(lease_id, None):
            self._orders.put_nowait(pb.HoldRequest(let_go=[lease_id]))

    async def close(self) -> None:
        """Let go of everything."""
        self._kept.clear()
        if self._calling is not None:
            self._calling.cancel()
            await asyncio.wait([self._calling])

    async def _call(self) -> None:
        while self._kept:
            try:
                await self._once()
            except PoolUnreachable:
                pass
            except PoolError as error:  # it knows us no more
                return self._all_over(str(error))
            await asyncio.sleep(AGAIN_SECONDS)

    async def _once(self) -> None:
        self._orders = asyncio.Queue()  # what is kept now says all
        call = self._client.hold()
        writing = asyncio.create_task(self._write(call))
        try:
            async for reply in call:
                lease = messages.lease_from(reply.lease)
                if lease.state not in ("ending", "ended"):
                    if kept := self._kept.get(lease.id):
                        kept.changed(lease)
                elif kept := self._kept.pop(lease.id, None):
                    kept.over(lease.end_reason)
        except grpc.aio.AioRpcError as error:
            raise await self._client.explain(error) from None
        finally:
            writing.cancel()
            call.cancel()

    async def _write(self, call: grpc.aio.StreamStreamCall) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(pb.HoldRequest(hold=list(self._kept)))
            while True:
                await call.write(await self._orders.get())

    def _all_over(self, reason: str) -> None:
        kept, self._kept = self._kept, {}
        for one in kept.values():
            one.over(reason)
