"""The keepalive where something fails: what fails for one lease ends no other, and a stream that broke is opened again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

import gpukernel.common.proto.pool_pb2 as pb
from gpukernel.client import keepalive
from gpukernel.client.keepalive import KeepaliveStream
from gpukernel.common import messages
from gpukernel.common.errors import PoolError, UnknownToken
from gpukernel.common.fork_safe_grpc import grpc
from gpukernel.common.model import Holder, Lease

LEASE = Lease("l1", "k1", Holder("anna"), (), "live", 5.0, 9.0, 60.0, 1)


class Stream:
    """A ``Hold`` call that answers what the test puts into it."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Lease | Exception] = asyncio.Queue()
        self.ended = False

    async def write(self, request: pb.HoldRequest) -> None:
        pass

    def cancel(self) -> None:
        self.ended = True

    async def __aiter__(self) -> AsyncIterator[pb.HoldReply]:
        while True:
            answer = await self.answers.get()
            if isinstance(answer, Exception):
                raise answer
            yield pb.HoldReply(lease=messages.lease_to(answer))


class Kept:
    """A keepalive over such streams, and what the holder of its leases hears."""

    def __init__(self, *faults: Exception) -> None:
        self.streams: list[Stream] = []
        self.heard: list[str] = []
        self._faults = list(faults)
        self.keepalive = KeepaliveStream(self._open, self._explain)

    async def _open(self) -> Any:
        if self._faults:
            raise self._faults.pop()
        self.streams.append(Stream())
        return self.streams[-1]

    async def _explain(self, error: grpc.aio.AioRpcError) -> PoolError:
        return UnknownToken("The pool does not know this token.")

    def keep(self, lease_id: str, *, fails: bool = False) -> None:
        def hear(words: str) -> None:
            self.heard.append(words)
            if fails:
                raise RuntimeError("a defect")

        self.keepalive.keep(
            lease_id,
            lambda lease: hear(f"{lease.id} changed"),
            lambda reason: hear(f"{lease_id} over: {reason}"),
        )

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not true():
                await asyncio.sleep(0)


def test_a_holder_that_fails_at_news_costs_no_other_its_lease(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        kept = Kept()
        kept.keep("l1", fails=True)
        kept.keep("l2")
        await kept.until(lambda: kept.streams)
        for news in (
            LEASE,
            replace(LEASE, id="l2"),
            replace(LEASE, state="ended", end_reason="idle"),
            replace(LEASE, id="l2"),
        ):
            kept.streams[0].answers.put_nowait(news)
        await kept.until(lambda: len(kept.heard) == 4)
        assert kept.heard == ["l1 changed", "l2 changed", "l1 over: idle", "l2 changed"]
        assert (len(kept.streams), kept.streams[0].ended) == (1, False)
        await kept.keepalive.close()

    asyncio.run(story())
    assert [str(record.exc_info and record.exc_info[1]) for record in caplog.records] == ["a defect"] * 2


def test_every_holder_hears_that_the_pool_knows_them_no_longer() -> None:
    async def story() -> None:
        kept = Kept()
        kept.keep("l1", fails=True)
        kept.keep("l2")
        await kept.until(lambda: kept.streams)
        code, none = grpc.StatusCode.UNAUTHENTICATED, grpc.aio.Metadata()
        kept.streams[0].answers.put_nowait(grpc.aio.AioRpcError(code, none, none))
        await kept.until(lambda: len(kept.heard) == 2)
        assert kept.heard == [f"{one} over: The pool does not know this token." for one in ("l1", "l2")]

    asyncio.run(story())


def test_a_stream_that_fails_unexpectedly_is_opened_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keepalive, "AGAIN_SECONDS", 0.0)

    async def story() -> None:
        kept = Kept(RuntimeError("a defect"))
        kept.keep("l1")
        await kept.until(lambda: kept.streams)
        kept.streams[0].answers.put_nowait(ValueError("a broken answer"))
        await kept.until(lambda: len(kept.streams) == 2)
        kept.streams[1].answers.put_nowait(LEASE)
        await kept.until(lambda: kept.heard)
        assert kept.heard == ["l1 changed"]
        await kept.keepalive.close()

    asyncio.run(story())
    assert {record.getMessage() for record in caplog.records} == {
        "the keepalive of 1 leases failed and begins again"
    }
