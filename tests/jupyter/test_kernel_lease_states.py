"""The state machine of a kernel's lease, with a pool that answers when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpukernel.common.course import Offered
from gpukernel.common.errors import PoolUnreachable, Refused
from gpukernel.common.model import Chance, Holder, Lease, Queued, Slice, SliceRequest
from gpukernel.jupyter.errors import SliceUnavailable
from gpukernel.jupyter.kernel_lease import KernelLease
from gpukernel.jupyter.trouble.process import CUDA
from gpukernel.remoting.lease_file import read_lease_file

MIB = 2**20
LEASE = Lease(
    "l1",
    "k1",
    Holder("anna"),
    (Slice("a/0", "a", 0, "Tesla V100", 1000 * MIB, 20 * MIB, endpoints=("unix:/x",)),),
    "live",
    5.0,
    9.0,
    60.0,
    1,
    secret="deep",
)


class FakeKeepalive:
    def __init__(self) -> None:
        self.kept: dict[str, tuple[Callable[[Lease], None], Callable[[str], None]]] = {}

    def keep(self, lease: str, changed: Callable[[Lease], None], over: Callable[[str], None]) -> None:
        self.kept[lease] = (changed, over)

    def let_go(self, lease: str) -> None:
        self.kept.pop(lease, None)


class FakePool:
    """The client and the manager of one kernel's lease."""

    def __init__(self) -> None:
        self.keepalive = FakeKeepalive()
        self.answers: asyncio.Queue[Queued | Lease | Exception] = asyncio.Queue()
        self.asked: list[SliceRequest] = []
        self.released: list[tuple[str, str]] = []
        self.started = True
        self.allowed = 1.0
        self.meanwhile: Callable[[], object] = lambda: None
        self.loaded: Set[str] = frozenset()
        self.seen: list[str] = []

    async def client(self, address: str) -> Any:
        return self

    def runs(self, key: str) -> bool:
        return self.started

    def libraries(self, key: str) -> Set[str]:
        return self.loaded

    def changed(self, lease: KernelLease) -> None:
        self.seen.append(lease.state)

    async def acquire(
        self,
        key: str,
        request: SliceRequest,
        holder: Holder,
        wait_seconds: float,
        within: tuple[str, str],
    ) -> AsyncIterator[Queued | Lease]:
        assert within == ("", "")  # no pod's claim
        self.asked.append(request)
        while True:
            answer = await self.answers.get()
            if isinstance(answer, Exception):
                raise answer
            yield answer

    async def renew(self, lease: str) -> Lease:
        return replace(LEASE, secret="")

    async def release(self, lease: str, reason: str) -> None:
        self.released.append((lease, reason))

    async def resize(self, lease: str, request: SliceRequest) -> Lease:
        if request.share == 1:
            raise Refused("full", "There is no room for that.")
        return replace(LEASE, secret="")

    async def estimate(self, course: str, sizes: Iterable[Offered]) -> list[Chance]:
        self.meanwhile()
        return [Chance("free" if size.share <= self.allowed else "refused") for size in sizes]


def told(
    story: Callable[[Any, KernelLease], Coroutine[Any, Any, None]],
    tmp_path: Path,
    pool: FakePool | None = None,
) -> None:
    """Run `story` with a kernel that may ask for a slice."""
    pool = pool or FakePool()

    async def run() -> None:
        lease = KernelLease(pool, "k1", "unix:/pool", "/socket")
        lease.request, lease.holder = SliceRequest(share=0.02, model="V100"), Holder("anna")
        lease.file = tmp_path / "lease"
        async with asyncio.timeout(10):
            await story(pool, lease)

    asyncio.run(run())


async def granted(pool: FakePool, lease: KernelLease) -> None:
    lease.ask()
    pool.answers.put_nowait(LEASE)
    assert await lease.settled(5)


def test_a_request_waits_and_is_granted_and_the_file_follows(tmp_path: Path) -> None:
    async def story(pool: FakePool, lease: KernelLease) -> None:
        lease.ask()
        lease.ask()  # changes nothing
        pool.answers.put_nowait(Queued(2, 90.0, "others wait", "your quota is full."))
        await lease.answered()
        assert lease.place_words() == (
            "waiting for V100 × 0.02: position 2 in the queue, about 2 min to go: your quota is full …"
        )
        assert read_lease_file(tmp_path / "lease").state == "none"
        pool.answers.put_nowait(LEASE)
        assert await lease.settled(5)
        assert (lease.state, lease.status().lease_id, len(pool.asked)) == ("live", "l1", 1)
        found = read_lease_file(tmp_path / "lease")
        assert (found.state, found.secret, found.kernel, found.socket) == ("live", "deep", "k1", "/socket")
        assert list(pool.keepalive.kept) == ["l1"]

    told(story, tmp_path)


def test_a_cancelled_request_holds_nothing_and_may_be_repeated(tmp_path: Path) -> None:
    async def story(pool: FakePool, lease: KernelLease) -> None:
        lease.ask()
        await lease.command("cancel", {})
        assert (lease.state, lease.sentence) == (
            "none",
            "the request was cancelled; run the cell again to queue again",
        )
        await granted(pool, lease)
        await lease.command("cancel", {})  # there is nothing to cancel
        assert lease.state == "live"

    told(story, tmp_path)


def test_a_process_that_used_cuda_on_a_slice_that_is_gone_needs_a_restart(tmp_path: Path) -> None:
    async def story(pool: FakePool, lease: KernelLease) -> None:
        await granted(pool, lease)
        await lease.command("release", {})
        assert not lease.status().needs_restart  # it has not loaded CUDA: the next call asks for a slice
        await granted(pool, lease)
        pool.loaded = frozenset({CUDA})
        await lease.command("release", {})
        assert lease.status().needs_restart
        assert str(lease.status()).endswith("its libraries keep what was then.")
        await granted(pool, lease)
        assert lease.status().needs_restart  # another slice does not help it
        lease.begin()
        assert not lease.status().needs_restart

    told(story, tmp_path)


def test_leaving_the_queue_needs_a_restart_only_where_a_library_keeps_that_there_is_no_gpu(
    tmp_path: Path,
) -> None:
    async def story(pool: FakePool, lease: KernelLease) -> None:
        for libraries, again in (
            ({CUDA}, "run the cell again to queue again"),
            ({CUDA, "xla_cuda_plugin"}, "restart the kernel to queue again"),
        ):
            lease.ask()
            lease.askers, pool.loaded = 1, frozenset(libraries)
            await lease.interrupt()
            assert lease.sentence == f"the cell was interrupted, so this kernel left the queue; {again}"
            assert lease.status().needs_restart == again.startswith("restart")

    told(story, tmp_path)


def test_a_trouble_stays_until_it_is_over(tmp_path: Path) -> None:
    async def story(pool: FakePool, lease: KernelLease) -> None:
        await lease.report("memory")
        assert lease.status().trouble == ""  # without a slice there is nothing to say
        await granted(pool, lease)
        await lease.report("memory")
        assert lease.status().larger_share == 0.05  # the next larger than 20 MiB of 1 GiB
        assert "Out of memory: this slice has 20 MiB. “%gpu resize 0.05”" in str(lease.status())
        await lease.report("")
        assert lease.status().trouble == ""
        await lease.report("fault")
        await lease.report("memory")
        await lease.report("")
        assert lease.status().trouble == "fault"
        lease.begin()
        assert lease.status().trouble == ""

    told(story, tmp_path)


def test_the_size_that_is_suggested_is_one_that_quotas_allow(tmp_path: Path) -> None:
    async def story(pool: FakePool, lease: KernelLease) -> None:
        await granted(pool, lease)
        pool.allowed = 0.02
        await lease.report("memory")
        assert lease.status().larger_share == 0
        assert "Your quotas allow no larger one: use less" in str(lease.status())

    told(story, tmp_path)


def test_a_report_says_nothing_of_a_kernel_that_was_started_again_or_failed_meanwhile(tmp_path: Path) -> None:
    async def story(pool: FakePool, lease: KernelLease) -> None:
        await granted(pool, lease)
        pool.meanwhile = lease.begin
        await lease.report("memory")
        assert lease.status().trouble == ""
        pool.meanwhile = lambda: setattr(lease, "trouble", "fault")
        await lease.report("memory")
        assert lease.status().trouble == "fault"

    told(story, tmp_path)


def test_a_released_slice_goes_back_once(tmp_path: Path) -> None:
    async def story(pool: FakePool, lease: KernelLease) -> None:
        await granted(pool, lease)
        await lease.command("release", {})
        await lease.command("release", {})
        assert pool.released == [("l1", "released in its notebook")]
        assert (lease.state, pool.keepalive.kept) == ("none", {})
        assert read_lease_file(tmp_path / "lease").reason == "released in its notebook"

    told(story, tmp_path)


def test_a_slice_in_direct_mode_cannot_be_released(tmp_path: Path) -> None:
    async def story(pool: FakePool, lease: KernelLease) -> None:
        lease.ask()
        pool.answers.put_nowait(replace(LEASE, mode="direct"))
        await lease.settled(5)
        with pytest.raises(SliceUnavailable, match="would end with its slice"):
            await lease.command("release", {})
        assert lease.state == "live"

    told(story, tmp_path)


def test_a_resize_keeps_the_secret_and_a_refused_one_changes_nothing(tmp_path: Path) -> None:
    async def story(pool: FakePool, lease: KernelLease) -> None:
        with pytest.raises(SliceUnavailable, match="holds no slice that could be resized"):
            await lease.command("resize", {"share": 0.05})
        await granted(pool, lease)
        with pytest.raises(SliceUnavailable, match="There is no room for that"):
            await lease.command("resize", {"share": 1})
        assert lease.status().what == "V100 × 0.02"
        await lease.command("resize", {"share": 0.05})
        assert lease.status().what == "V100 × 0.05"
        assert lease.lease is not None
        assert lease.lease.secret == "deep"

    told(story, tmp_path)


def test_a_lease_that_the_pool_ends_leaves_its_reason_and_may_be_asked_for_again(tmp_path: Path) -> None:
    async def story(pool: FakePool, lease: KernelLease) -> None:
        await granted(pool, lease)
        pool.keepalive.kept["l1"][1]("it was idle")
        assert (lease.state, lease.sentence, lease.status().lease_id) == ("ended", "it was idle", "")
        await lease.command("acquire", {"share": 0.1})
        pool.answers.put_nowait(LEASE)
        assert await lease.settled(5)
        assert [request.share for request in pool.asked] == [0.02, 0.1]

    told(story, tmp_path)


def test_a_refused_request_has_the_pools_sentence(tmp_path: Path) -> None:
    async def story(pool: FakePool, lease: KernelLease) -> None:
        lease.ask()
        pool.answers.put_nowait(Refused("too_large", "No device is that large."))
        assert await lease.settled(5)
        assert (lease.state, lease.sentence) == ("ended", "No device is that large.")

    told(story, tmp_path)


def test_a_kernel_that_starts_does_not_wait_for_a_pool_that_is_away_and_one_that_runs_does(
    tmp_path: Path,
) -> None:
    async def story(pool: FakePool, lease: KernelLease) -> None:
        pool.started = False
        lease.ask()
        pool.answers.put_nowait(PoolUnreachable("No pool answers."))
        assert await lease.settled(5)
        assert (lease.state, lease.sentence) == ("ended", "No pool answers.")
        pool.started = True
        lease.ask()
        pool.answers.put_nowait(PoolUnreachable("No pool answers."))
        await lease.answered()
        assert lease.state == "waiting"
        assert "the pool does not answer; asking again" in lease.place_words()

    told(story, tmp_path)


def test_an_interrupt_leaves_the_queue_only_where_a_call_waits(tmp_path: Path) -> None:
    async def story(pool: FakePool, lease: KernelLease) -> None:
        lease.ask()
        await lease.interrupt()
        assert lease.state == "waiting"
        lease.askers = 1
        await lease.interrupt()
        assert lease.state == "none"
        assert "the cell was interrupted" in lease.sentence

    told(story, tmp_path)
