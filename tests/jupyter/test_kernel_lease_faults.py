"""A kernel's lease where something fails: every request ends with a sentence, gives back what it had, and may be repeated."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpukernel.common.errors import LeaseEnded, PoolUnreachable, Refused
from gpukernel.common.model import Holder, Lease, Queued, SliceRequest
from gpukernel.jupyter import kernel_lease
from gpukernel.jupyter.kernel_lease import FAILED, KernelLease
from gpukernel.remoting.lease_file import read_lease_file
from tests.jupyter.test_kernel_lease_states import LEASE, MIB, FakeKeepalive, FakePool, granted, told


def of_size(mib: int) -> Lease:
    return replace(LEASE, secret="", slices=(replace(LEASE.slices[0], memory_bytes=mib * MIB),))


class FaultyPool(FakePool):
    """A pool whose answers come when the test lets them, and some of which are defects.

    Attributes
    ----------
    open
        How many calls wait in the queue now.
    resizes, renewals
        The calls that wait for their answers, in the order in which they were made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.open = 0
        self.resizes: list[tuple[SliceRequest, asyncio.Future[Lease]]] = []
        self.renewals: list[asyncio.Future[Lease]] = []
        self.faults: list[BaseException] = []

    async def client(self, address: str) -> Any:
        if self.faults:
            raise self.faults.pop()
        return self

    async def acquire(
        self,
        key: str,
        request: SliceRequest,
        holder: Holder,
        wait_seconds: float,
        within: tuple[str, str],
    ) -> AsyncGenerator[Queued | Lease]:
        assert within == ("", "")  # no pod's claim
        self.open += 1
        try:
            self.asked.append(request)
            while True:
                answer = await self.answers.get()
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
        finally:
            self.open -= 1

    async def resize(self, lease: str, request: SliceRequest) -> Lease:
        self.resizes.append((request, asyncio.get_running_loop().create_future()))
        return await self.resizes[-1][1]

    async def renew(self, lease: str) -> Lease:
        self.renewals.append(asyncio.get_running_loop().create_future())
        return await self.renewals[-1]


async def until(true: Callable[[], object]) -> None:
    while not true():
        await asyncio.sleep(0)


async def works_again(pool: FaultyPool, lease: KernelLease, folder: Path) -> None:
    """See that nothing is held and that the next request is granted."""
    assert (lease.state, lease.sentence, lease.lease, lease.queued) == ("ended", FAILED, None, None)
    assert (pool.open, pool.keepalive.kept) == (0, {})
    assert (read_lease_file(folder / "lease").state, read_lease_file(folder / "lease").reason) == (
        "none",
        FAILED,
    )
    await granted(pool, lease)
    assert (lease.state, list(pool.keepalive.kept)) == ("live", ["l1"])
    assert read_lease_file(folder / "lease").state == "live"


@pytest.mark.parametrize("place", [None, Queued(1, 5.0, "others wait")], ids=["at once", "in the queue"])
def test_a_request_that_fails_unexpectedly_ends_and_may_be_repeated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, place: Queued | None
) -> None:
    async def story(pool: FaultyPool, lease: KernelLease) -> None:
        lease.ask()
        if place is not None:
            pool.answers.put_nowait(place)
            await lease.answered()
        pool.answers.put_nowait(RuntimeError("a defect"))
        assert await lease.settled(5)
        await works_again(pool, lease, tmp_path)

    told(story, tmp_path, FaultyPool())
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "a defect"


def test_a_client_that_cannot_be_made_ends_the_request(tmp_path: Path) -> None:
    async def story(pool: FaultyPool, lease: KernelLease) -> None:
        pool.faults.append(ValueError("no such channel"))
        lease.ask()
        assert await lease.settled(5)
        await works_again(pool, lease, tmp_path)

    told(story, tmp_path, FaultyPool())


def test_a_call_that_is_cancelled_under_the_request_ends_it(tmp_path: Path) -> None:
    async def story(pool: FaultyPool, lease: KernelLease) -> None:
        pool.faults.append(asyncio.CancelledError())  # as grpc.aio raises it when its channel closes
        lease.ask()
        assert await lease.settled(5)
        await works_again(pool, lease, tmp_path)

    told(story, tmp_path, FaultyPool())


def test_a_listener_that_fails_leaves_nothing_in_the_queue(tmp_path: Path) -> None:
    async def story(pool: FaultyPool, lease: KernelLease) -> None:
        lease.ask()
        await until(lambda: pool.open)
        tell, pool.changed = pool.changed, lambda lease: 1 / 0  # type: ignore[assignment,method-assign,return-value]
        pool.answers.put_nowait(Queued(1, 5.0, "others wait"))
        await until(lambda: lease.state != "waiting")
        pool.changed = tell  # type: ignore[method-assign]
        await works_again(pool, lease, tmp_path)

    told(story, tmp_path, FaultyPool())


def test_a_slice_that_comes_and_cannot_be_kept_goes_back(tmp_path: Path) -> None:
    class Broken(FakeKeepalive):
        def keep(self, lease: str, changed: Any, over: Any) -> None:
            raise RuntimeError("a defect")

    async def story(pool: FaultyPool, lease: KernelLease) -> None:
        pool.keepalive = Broken()
        lease.ask()
        pool.answers.put_nowait(LEASE)
        assert await lease.settled(5)
        await until(lambda: pool.released)
        assert [one for one, _ in pool.released] == ["l1"]
        pool.keepalive = FakeKeepalive()
        await works_again(pool, lease, tmp_path)

    told(story, tmp_path, FaultyPool())


@pytest.mark.parametrize("turns", range(8))
def test_a_request_may_be_cancelled_at_every_await(tmp_path: Path, turns: int) -> None:
    async def story(pool: FaultyPool, lease: KernelLease) -> None:
        lease.ask()
        pool.answers.put_nowait(Queued(1, 5.0, "others wait"))
        pool.answers.put_nowait(PoolUnreachable("No pool answers."))
        for _ in range(turns):
            await asyncio.sleep(0)
        lease.cancel("changed their mind")
        pool.answers = asyncio.Queue()
        assert (lease.state, lease.sentence, lease.queued) == ("none", "changed their mind", None)
        await granted(pool, lease)
        assert (pool.open, list(pool.keepalive.kept), lease.state) == (0, ["l1"], "live")

    told(story, tmp_path, FaultyPool())


def test_a_request_for_a_remote_slice_is_not_overtaken_by_the_one_before_that_asks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_lease, "AGAIN_SECONDS", 0.0)

    async def story(pool: FaultyPool, lease: KernelLease) -> None:
        assert lease.request is not None
        lease.request = replace(lease.request, mode="auto")
        lease.ask()
        pool.answers.put_nowait(Queued(1, 5.0, "others wait"))
        await lease.answered()
        pool.answers.put_nowait(PoolUnreachable("No pool answers."))
        await until(lambda: not pool.open)  # it would ask again now
        lease.ask_for_remote()
        for _ in range(20):
            await asyncio.sleep(0)
        assert [request.mode for request in pool.asked] == ["auto", "remote"]

    told(story, tmp_path, FaultyPool())


def test_an_end_that_the_pool_tells_counts_although_something_else_changed_meanwhile(tmp_path: Path) -> None:
    async def story(pool: FaultyPool, lease: KernelLease) -> None:
        await granted(pool, lease)
        checking = asyncio.create_task(lease.check())
        await until(lambda: pool.renewals)
        pool.keepalive.kept["l1"][0](replace(LEASE, secret="", notice="This slice ends soon."))
        pool.renewals[0].set_exception(LeaseEnded("its server was drained"))
        await checking
        assert (lease.state, lease.sentence) == ("ended", "its server was drained")

    told(story, tmp_path, FaultyPool())


def test_an_end_of_the_lease_before_does_not_end_this_one(tmp_path: Path) -> None:
    async def story(pool: FaultyPool, lease: KernelLease) -> None:
        await granted(pool, lease)
        checking = asyncio.create_task(lease.check())
        await until(lambda: pool.renewals)
        await lease.release("released in its notebook")
        lease.ask()
        pool.answers.put_nowait(replace(LEASE, id="l2"))
        assert await lease.settled(5)
        pool.renewals[0].set_exception(LeaseEnded("released in its notebook"))
        await checking
        assert (lease.state, lease.status().lease_id) == ("live", "l2")

    told(story, tmp_path, FaultyPool())


def test_an_older_answer_does_not_undo_a_resize(tmp_path: Path) -> None:
    async def story(pool: FaultyPool, lease: KernelLease) -> None:
        await granted(pool, lease)
        checking = asyncio.create_task(lease.check())
        await until(lambda: pool.renewals)
        resizing = asyncio.create_task(lease.command("resize", {"share": 0.05}))
        await until(lambda: pool.resizes)
        pool.resizes[0][1].set_result(of_size(50))
        await resizing
        pool.renewals[0].set_result(of_size(20))
        await checking
        assert lease.status().devices[0].memory_bytes == 50 * MIB

    told(story, tmp_path, FaultyPool())


def test_of_two_resizes_the_newer_is_what_is_known(tmp_path: Path) -> None:
    async def story(pool: FaultyPool, lease: KernelLease) -> None:
        await granted(pool, lease)
        both = asyncio.gather(
            lease.command("resize", {"share": 0.05}), lease.command("resize", {"share": 0.1})
        )
        answered = 0
        while answered < 2:  # the pool answers the latest call that it has first
            await until(lambda: any(not answer.done() for _, answer in pool.resizes))
            for _ in range(5):
                await asyncio.sleep(0)
            request, answer = next(one for one in reversed(pool.resizes) if not one[1].done())
            answer.set_result(of_size(round((request.share or 0) * 1000)))
            await until(answer.done)
            answered += 1
        await both
        status = lease.status()
        assert (status.what, status.devices[0].memory_bytes) == ("V100 × 0.1", 100 * MIB)
        assert lease.lease is not None
        assert lease.lease.secret == "deep"

    told(story, tmp_path, FaultyPool())


def test_a_refused_resize_does_not_keep_the_next_from_its_turn(tmp_path: Path) -> None:
    async def story(pool: FaultyPool, lease: KernelLease) -> None:
        await granted(pool, lease)
        first = asyncio.create_task(lease.command("resize", {"share": 0.9}))
        second = asyncio.create_task(lease.command("resize", {"share": 0.05}))
        await until(lambda: pool.resizes)
        pool.resizes[0][1].set_exception(Refused("full", "There is no room for that."))
        await until(lambda: len(pool.resizes) == 2)
        pool.resizes[1][1].set_result(of_size(50))
        said = await asyncio.gather(first, second, return_exceptions=True)
        assert [str(one) for one in said] == ["There is no room for that.", "None"]
        assert lease.status().what == "V100 × 0.05"

    told(story, tmp_path, FaultyPool())


def test_a_lease_file_that_cannot_be_written_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(pool: FaultyPool, lease: KernelLease) -> None:
        (tmp_path / "lease").mkdir()
        lease.ask()
        (tmp_path / "lease").rmdir()
        lease.file = tmp_path / "gone" / "lease"  # its server removes the directory at its end
        await granted(pool, lease)

    told(story, tmp_path, FaultyPool())
    assert [record.getMessage() for record in caplog.records] == [
        "the lease file of kernel k1 cannot be written: Is a directory"
    ]
