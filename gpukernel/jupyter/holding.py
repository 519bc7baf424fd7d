"""One kernel's slice, from asking for it to giving it back, and the place in the queue in between.

Guarantees
----------
* A holding has at most one lease and at most one place in the queue: asking again changes neither.
* A kernel in direct mode keeps its slice for as long as it lives: what it runs on is decided when it starts.
* The lease file says at every moment what the shim needs to know: that there is a slice, or whom to ask for one and why not.
* A pool that goes away keeps nobody from waiting: the place is asked for again, under the same key, when it is back.
* A lease lives for as long as this process does (`gpukernel.pool.keeping`); where it ends, the holding has its reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpukernel.jupyter.keeper import LeaseKeeper
    from gpukernel.pool.client import PoolClient
    from gpukernel.pool.keeping import Keeping
    from gpukernel.pool.model import Holder, Lease, Queued, SliceRequest

__all__ = ["Holding", "SliceUnavailable"]

MIB = 2**20
RELEASE_SECONDS = 10.0
SHOW_SECONDS = 2.0
AGAIN_SECONDS = 1.0
AWAY = "the pool does not answer; asking again"


class SliceUnavailable(RuntimeError):
    """The kernel got no slice; the text is one sentence for the person who started it."""


class Holding:
    """What the keeper knows of one kernel; everything here happens in the keeper's loop.

    Attributes
    ----------
    state
        ``none`` (nothing asked for), ``waiting``, ``live`` or ``ended`` (refused, or over; `sentence` says why).
    queued
        The place in the queue while waiting; None before the pool has told it.
    driver
        The real ``libcuda.so.1`` where the kernel started in direct mode.
    starts
        How often its kernel was started.
    askers
        How many CUDA calls wait for the slice now.
    """

    def __init__(self, keeper: LeaseKeeper, key: str, address: str, desk: str) -> None:
        self._keeper = keeper
        self.key = key
        self.address = address
        self.desk = desk
        self.request: SliceRequest | None = None
        self.holder: Holder | None = None
        self.file: Path | None = None
        self.state = "none"
        self.sentence = ""
        self.lease: Lease | None = None
        self._keeping: Keeping | None = None
        self.driver: Path | None = None
        self.queued: Queued | None = None
        self.since = 0.0
        self.starts = 0
        self.askers = 0
        self._giving_back = asyncio.Lock()
        self._changed = asyncio.Event()
        self._queueing: asyncio.Task[None] | None = None
        self._interrupting: asyncio.Task[None] | None = None

    # --- asking and giving back ---

    def begin(self) -> None:
        """Ask for a slice, unless there is one or it is being asked for."""
        if self.state in ("none", "ended"):
            self._forget_lease()
            self.queued, self.since = None, time.time()
            self._turn("waiting", "")
            self._queueing = asyncio.create_task(self._queue())

    async def check(self) -> None:
        """Ask the pool whether the lease lives still: its end may not have come here yet."""
        from gpukernel.pool.errors import LeaseEnded, PoolError

        if (lease := self.lease) is None:
            return
        try:
            client = await self._keeper.client(self.address)
            async with asyncio.timeout(SHOW_SECONDS):
                renewed = await client.renew(lease.id)
            if self.lease is lease:
                self.lease = self._with_secret(renewed)
        except LeaseEnded as error:
            if self.lease is lease:
                self._over(str(error))
        except (PoolError, TimeoutError):
            pass

    async def settled(self, seconds: float) -> bool:
        """Whether the slice came, or was refused, within `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.state == "waiting":
                    await self.change()
        return self.state != "waiting"

    async def answered(self, seconds: float) -> None:
        """Wait until the pool has told a place in the queue, or more, but no longer than `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.state == "waiting" and self.queued is None:
                    await self.change()

    async def change(self) -> None:
        """Wait until something is different."""
        await self._changed.wait()

    def leave(self, sentence: str) -> None:
        """Give up the place in the queue."""
        if self.state == "waiting":
            self._stop_queueing()
            self._turn("none", sentence)

    async def wait_for_a_worker(self) -> None:
        """Keep the place in the queue, but for a slice that a worker serves: the kernel will start without one.

        Returns when the pool knows that, or has answered otherwise; so no slice in direct mode comes after it.
        """
        from dataclasses import replace

        assert self.request is not None
        self.request = replace(self.request, mode="remote", machine="")
        self.queued = None
        self._queueing = asyncio.create_task(self._queue())  # the pool ends the call of the one before
        while self.state == "waiting" and self.queued is None:
            await self.change()

    async def environment(self, base: dict[str, str]) -> dict[str, str]:
        """`base`, changed for a kernel that starts now: on a slice in direct mode, or under the shim.

        Raises
        ------
        SliceUnavailable
            The kernel cannot use a slice in direct mode here.
        """
        from gpukernel.remoting.direct import DriverNotFound
        from gpukernel.remoting.environment import lease_environment, shim_environment

        assert self.file is not None
        if self.lease is None:
            environment, self.driver = shim_environment(self.file, base), None
        else:
            try:  # in a thread, since it may ask the loader for the driver
                environment, self.driver = await asyncio.to_thread(
                    lease_environment, self.file, self.lease, base
                )
            except DriverNotFound as error:
                raise SliceUnavailable(str(error)) from None
            except OSError as error:
                raise SliceUnavailable(f"The slice cannot be reached from here: {error}.") from None
        self.write()
        return environment

    def may_be_released(self) -> None:
        """Raise `SliceUnavailable` where the kernel would end with its slice."""
        if self.lease is not None and self.lease.mode == "direct":
            raise SliceUnavailable(
                "This kernel uses its GPU itself (direct mode) and would end with its slice; shut the kernel down instead."
            )

    async def release(self, reason: str) -> None:
        """Give up the place or the lease; where the pool cannot be reached, stop renewing and leave it to expiry."""
        from gpukernel.pool.errors import PoolError

        self._stop_queueing()
        lease = self.lease
        self._forget_lease()
        self._turn("none", reason)
        if lease is not None:
            async with self._giving_back:
                with contextlib.suppress(PoolError, TimeoutError):
                    client = await self._keeper.client(self.address)
                    await asyncio.wait_for(client.release(lease.id, reason), RELEASE_SECONDS)

    async def resize(self, request: SliceRequest) -> None:
        """Have another size of the same device.

        Raises
        ------
        SliceUnavailable
            The pool refuses, with the figure that stands in the way.
        """
        from gpukernel.pool.errors import PoolError, Refused

        if self.lease is None:
            raise SliceUnavailable("This kernel holds no slice that could be resized; see “%gpu acquire”.")
        client = await self._keeper.client(self.address)
        lease = self.lease
        try:
            changed = await client.resize(lease.id, request)
        except (PoolError, Refused) as error:
            raise SliceUnavailable(str(error)) from None
        if self.lease is None or self.lease.id != lease.id:
            raise SliceUnavailable("The slice was given back meanwhile.")
        self.request, self.lease = request, self._with_secret(changed)
        self._turn("live", "")

    async def interrupt(self) -> None:
        """The person interrupted the cell: a CUDA call that waits leaves the queue; GPU work that does not end by itself ends."""
        if self.state == "waiting" and self.askers:
            self.leave(
                "the cell was interrupted, so this kernel left the queue; run the cell again to queue again"
            )
        elif self.state == "live" and self.lease is not None:
            # Nobody waits for the answer: a kernel's shutdown begins with an interrupt, and the pool may be slow.
            self._interrupting = asyncio.create_task(self._end_work(self.lease))

    # --- what it looks like ---

    def words(self) -> str:
        """The place in the queue as one line."""
        what = self.what()
        if self.queued is None or not self.queued.position:
            return f"waiting for {what}: {self.queued.reason if self.queued else 'asking the pool'} …"
        estimate = self.queued.estimate_seconds
        about = "" if estimate < 0 else f", about {duration(estimate)} to go"
        why = f": {self.queued.quota.rstrip('.')}" if self.queued.quota else ""
        return f"waiting for {what}: position {self.queued.position} in the queue{about}{why} …"

    def what(self) -> str:
        """What is asked for, in words: V100 × 0.02."""
        from gpukernel.jupyter.kernelspecs import figure

        request = self.request
        if request is None:
            return "a slice"
        size = (
            figure(request.share)
            if request.share is not None
            else f"{(request.memory_bytes or 0) // MIB} MiB"
        )
        count = f"{request.devices} × " if request.devices > 1 else ""
        return f"{count}{request.model or 'GPU'} × {size}"

    async def show(self, *, fresh: bool = True) -> dict[str, Any]:
        """Everything about it, for the notebook and the side panel."""
        if fresh:
            await self.check()
        request = self.request
        return {
            "key": self.key,
            "state": self.state,
            "sentence": self.sentence,
            "what": self.what(),
            "words": self.words() if self.state == "waiting" else "",
            "position": self.queued.position if self.queued else 0,
            "estimate_seconds": self.queued.estimate_seconds if self.queued else -1.0,
            "since": self.since,
            "share": request.share if request else None,
            "model": request.model if request else "",
            "lease": as_json(self.lease) if self.lease is not None else None,
        }

    # --- inside ---

    async def _end_work(self, lease: Lease) -> None:
        from gpukernel.pool.errors import PoolError

        with contextlib.suppress(PoolError):
            await (await self._keeper.client(self.address)).interrupt(lease.id)

    def _turn(self, state: str, sentence: str) -> None:
        self.state, self.sentence = state, sentence
        self.write()
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._keeper.tell(self)

    def write(self) -> None:
        """Bring the lease file up to date."""
        from gpukernel.remoting.environment import write_lease_file, write_no_lease_file

        if self.file is None:
            return
        with contextlib.suppress(OSError):  # the directory went away with its server
            if self.lease is not None:
                write_lease_file(self.file, self.lease, self.key, self.desk, self.driver)
            else:
                write_no_lease_file(self.file, self.sentence, self.key, self.desk)

    def forget(self) -> None:
        """The kernel is over: its lease file goes."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)
            self.file = None  # whatever still changes is written nowhere

    async def _queue(self) -> None:
        from gpukernel.pool.errors import PoolError, PoolUnreachable, Refused
        from gpukernel.pool.model import Lease, Queued

        assert self.request is not None
        assert self.holder is not None
        async with self._giving_back:
            pass  # a release never overtakes the acquire that follows it
        while True:
            try:
                client = await self._keeper.client(self.address)
                async for event in client.acquire(self.key, self.request, self.holder, wait_seconds=-1):
                    if self._queueing is not asyncio.current_task():
                        return
                    if isinstance(event, Lease):
                        self._queueing = None
                        self._hold(client, event)
                        return
                    self.queued = event
                    self._tell()
                sentence = f"The pool at {self.address} ended the call without an answer."
            except PoolUnreachable as error:
                if self._queueing is not asyncio.current_task():
                    return
                # A kernel that is only starting is told so, unless the pool had answered already.
                if not self._keeper.patient(self.key) and self.queued is None:
                    self._queueing = None
                    return self._turn("ended", str(error))
                self.queued = Queued(0, -1.0, AWAY)
                self._tell()
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            except (Refused, PoolError) as error:
                sentence = str(error)
            if self._queueing is not asyncio.current_task():
                return
            self._queueing = None
            return self._turn("ended", sentence)

    def _hold(self, client: PoolClient, lease: Lease) -> None:
        from dataclasses import replace

        if self.request is not None and self.request.mode == "auto":  # a process is in one mode
            self.request = replace(self.request, mode=lease.mode)
        self.lease, self.queued = lease, None
        self._turn("live", "")

        def over(reason: str) -> None:
            if self.lease is not None and self.lease.id == lease.id:
                self._over(reason)

        self._keeping = client.keeping
        self._keeping.keep(lease.id, self._changed_at_pool, over)

    def _with_secret(self, lease: Lease) -> Lease:
        from dataclasses import replace

        assert self.lease is not None
        return replace(lease, secret=self.lease.secret)

    def _changed_at_pool(self, lease: Lease) -> None:
        """The pool tells that the lease is different: its size, its end, or what its holder should know."""
        if self.lease is not None and self.lease.id == lease.id:
            self.lease = self._with_secret(lease)
            self._tell()

    def _over(self, reason: str) -> None:
        self._forget_lease()
        self._turn("ended", reason or "the lease is over")

    def _forget_lease(self) -> None:
        lease, self.lease = self.lease, None
        if lease is not None and self._keeping is not None:
            self._keeping.let_go(lease.id)

    def _stop_queueing(self) -> None:
        self.queued = None
        queueing, self._queueing = self._queueing, None
        if queueing is not None:
            queueing.cancel()


def duration(seconds: float) -> str:
    """For people: 40 s, 3 min, 2 h."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def as_json(lease: Lease) -> dict[str, Any]:
    """A lease without its secret."""
    from dataclasses import asdict

    data = asdict(lease)
    del data["secret"]
    return data
