"""Keepalive of leases, the client's side: one open ``Hold`` stream for all leases of a process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from gpukernel.common.fork_safe_grpc import grpc  # before the messages import it

# isort: split
import gpukernel.common.proto.pool_pb2 as pb
from gpukernel.common import messages
from gpukernel.common.errors import PoolError, PoolUnreachable, Refused
from gpukernel.common.model import Lease

if TYPE_CHECKING:
    HoldCall: TypeAlias = grpc.aio.StreamStreamCall[pb.HoldRequest, pb.HoldReply]

__all__ = ["KeepaliveStream"]

News = TypeVar("News")

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0

AT_ONCE = 200
"""Leases in one message; a pool takes 1,000."""


@dataclass(frozen=True)
class _Kept:
    changed: Callable[[Lease], None]
    over: Callable[[str], None]


class KeepaliveStream:
    """Leases that live for as long as this process does, over one stream for all of them.

    A pool that goes away is asked again: its database knows the leases still.  What fails for one lease is logged and ends no other.

    Parameters
    ----------
    open_stream
        Begins a ``Hold`` call.
    explain
        Turns an error of the call into one with a sentence.
    """

    def __init__(
        self,
        open_stream: Callable[[], Awaitable[HoldCall]],
        explain: Callable[[grpc.aio.AioRpcError], Awaitable[PoolError]],
    ) -> None:
        self._open_stream = open_stream
        self._explain = explain
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
        """Keep a lease no longer: it has its time to live from now on."""
        if self._kept.pop(lease_id, None):
            self._orders.put_nowait(pb.HoldRequest(let_go=[lease_id]))

    async def close(self) -> None:
        """Let go of every lease."""
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
            except PoolError as error:
                if (
                    type(error) is PoolError
                ):  # a fault of the pool, or of its database, which may be over in a moment
                    log.warning("the keepalive of %d leases begins again: %s", len(self._kept), error)
                elif not (isinstance(error, Refused) and error.code == "too_often"):
                    return self._all_over(str(error))  # the pool no longer knows the caller
            except Exception:
                log.exception("the keepalive of %d leases failed and begins again", len(self._kept))
            await asyncio.sleep(AGAIN_SECONDS)

    async def _once(self) -> None:
        self._orders = asyncio.Queue()  # the first message names all that is kept now
        call = await self._open_stream()
        writing = asyncio.create_task(self._write(call))
        try:
            async for reply in call:
                lease = messages.lease_from(reply.lease)
                if lease.state not in ("ending", "ended"):
                    if kept := self._kept.get(lease.id):
                        _tell(kept.changed, lease)
                elif kept := self._kept.pop(lease.id, None):
                    _tell(kept.over, lease.end_reason)
        except grpc.aio.AioRpcError as error:
            raise await self._explain(error) from None
        finally:
            writing.cancel()
            call.cancel()

    async def _write(self, call: HoldCall) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            kept = list(self._kept)
            for first in range(0, len(kept), AT_ONCE):
                await call.write(pb.HoldRequest(hold=kept[first : first + AT_ONCE]))
            while True:
                await call.write(await self._orders.get())

    def _all_over(self, reason: str) -> None:
        kept, self._kept = self._kept, {}
        for one in kept.values():
            _tell(one.over, reason)


def _tell(listener: Callable[[News], None], news: News) -> None:
    try:
        listener(news)
    except Exception:
        log.exception("what a lease's holder does at news of it failed")
