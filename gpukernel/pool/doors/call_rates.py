"""Rates of calls: a token bucket for each identity, and a bound on the calls that it may have open.

Who may speak for others (a JupyterHub) is not counted as one: its calls count for the person on whose behalf they are made, so that one
service identity carries a whole class.  The pool's administrators are not counted at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from gpukernel.common.i18n import say

__all__ = ["COSTS", "CallRates", "Identified", "TooMany", "cost_of"]

CALLS_PER_SECOND = 10.0
"""Calls a second that a person may make for long."""

CALLS_AT_ONCE = 500.0
"""Calls that a person may make at once, after having made none for a while."""

SERVICE_FACTOR = 50.0
"""So many times as much has a service for calls that name no person."""

CALLS_IN_TURN = 50.0
"""Calls that a person made lately, above which theirs take turns with those of all others who made so many."""

OPEN_CALLS = 200
"""Calls of a person that may be open at a time: requests that wait, and streams that hold leases."""

OPEN_STREAMS = 64
"""Calls of a person that may be open and send messages, of which each may have a part of one in memory; a connection needs one."""

STRANGERS_PER_SECOND = 5.0
STRANGERS_AT_ONCE = 50.0
"""Failed authentications from one address; those above are answered late (`LATE_SECONDS`), one at a time for each connection."""

LATE_SECONDS = 1.0
LATE_PER_SECOND = 20.0
"""Late answers that one identity or address gets a second: who has many calls under way waits longer than `LATE_SECONDS`."""

PATIENT_REFUSALS = 20.0
"""Refusals that are answered at once; further ones within a second are answered late, so that who does not wait is made to."""

LATE_AT_MOST = 100
"""Late answers of one identity that may be under way; whose next call comes before that loses the connection."""

IDS_PER_CALL = 32
"""Leases named in a message of a stream that cost as much as a call."""

REPORTED_PER_SECOND = 16_384.0
REPORTED_AT_ONCE = 32_768.0
"""Workers and devices that one agent may report: twice as many as it can have, each second."""

READ_AT_ONCE = 8
MANY_READ_AT_ONCE = 64
"""Messages of a person, and of a service or an agent, that are being read at a time; all others wait outside of the pool's memory."""

MOST_KEPT = 20_000

COSTS = {
    "Pool/ListLeases": 3.0,
    "Pool/ListDevices": 1.0,
    "Hub/Estimate": 3.0,
    "Administration/Report": 20.0,
    "Administration/ShowQuotas": 5.0,
    "Administration/ImportCourses": 20.0,
    "Teaching/CourseUse": 20.0,
    "Teaching/SetQuota": 5.0,
    "Teaching/SetCourse": 5.0,
    "Reservations/AddReservation": 5.0,
    "Reservations/ListReservations": 3.0,
}
"""Calls that cost as much as several others, by service and method."""


def cost_of(method: str) -> float:
    """Return the cost of an RPC, ``/gpukernel.v1.Pool/Acquire``, in calls."""
    return COSTS.get(method.rpartition(".")[2], 1.0)


@dataclass(frozen=True)
class Identified:
    """The caller behind a credential, as far as rates go.

    Attributes
    ----------
    trusted
        A service or a GPU server's agent, which stands for many people.
    counted
        False for administrators.
    speaks
        It may speak for others: a call counts for the person whom it names.  An agent may not, whatever its calls name.
    """

    name: str
    trusted: bool = False
    counted: bool = True
    speaks: bool = False


class TooMany(Exception):
    """A refusal: somebody calls too often; the text is a sentence.

    Attributes
    ----------
    seconds
        Seconds to wait; 0 where that is not known.
    """

    def __init__(self, sentence: str, seconds: float) -> None:
        super().__init__(sentence)
        self.seconds = seconds


@dataclass
class _Bucket:
    left: float
    since: float


@dataclass
class _Places:
    free: asyncio.Semaphore
    users: int = 0


class CallRates:
    """The counts of calls by identity; used in one loop.

    Parameters
    ----------
    per_second, at_once
        Of a person.
    clock
        Seconds that never jump.
    """

    def __init__(
        self,
        per_second: float = CALLS_PER_SECOND,
        at_once: float = CALLS_AT_ONCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_second, self._at_once, self._clock = per_second, max(at_once, 1.0), clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._open: dict[str, int] = {}
        self._streams: dict[str, int] = {}
        self._late: dict[str, int] = {}
        self._reading: dict[str, _Places] = {}
        self._turns: dict[str, _Places] = {}
        self._busy = asyncio.Semaphore(1)
        self._known: OrderedDict[bytes, Identified] = OrderedDict()

    # --- identities ---

    def identify(self, credential: bytes, who: Identified) -> None:
        """Record who is behind a credential, after it was found good; this counts calls and gives no rights."""
        self._known[credential] = who
        self._known.move_to_end(credential)
        while len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)

    def identified(self, credential: bytes) -> Identified | None:
        """Return who was behind a credential when it was last used; None where it is not known."""
        return self._known.get(credential)

    def forget(self, credential: bytes) -> None:
        """Forget who was behind a credential: it counts no more."""
        self._known.pop(credential, None)

    # --- counting ---

    def seconds_until(self, key: str, cost: float, per_second: float, at_once: float) -> float:
        """Take `cost` from a bucket, or return the seconds after which that will be possible and take nothing."""
        now = self._clock()
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(at_once, now)
            self._forget_full(now)
        bucket.left = min(at_once, bucket.left + (now - bucket.since) * per_second)
        bucket.since = now
        self._buckets.move_to_end(key)
        cost = min(cost, at_once)  # what costs more than all can still be had, from a full bucket
        if bucket.left >= cost:
            bucket.left -= cost
            return 0.0
        return (cost - bucket.left) / per_second

    def _forget_full(self, now: float) -> None:
        """Forget who has not called for so long that the bucket is full, once there are many."""
        full = self._at_once / self._per_second
        while len(self._buckets) > MOST_KEPT:
            key, oldest = next(iter(self._buckets.items()))
            if now - oldest.since < full and len(self._buckets) < 2 * MOST_KEPT:
                break
            del self._buckets[key]

    def take(self, who: Identified, person: str, cost: float) -> None:
        """Count a call of `who`, made for `person` where that is somebody else.

        Raises
        ------
        TooMany
            With a sentence.
        """
        if seconds := self.delay(who, person, cost):
            name, rate = self._key(who, person)
            raise TooMany(
                say(
                    "%(name)s calls the pool too often: %(rate)s calls a second are possible, and %(burst)s at once; try again in %(seconds)s s.",
                    name=name[:80],
                    rate=f"{self._per_second * rate:g}",
                    burst=f"{self._at_once * rate:g}",
                    seconds=f"{seconds:.1f}",
                ),
                seconds,
            )

    def delay(self, who: Identified, person: str, cost: float) -> float:
        """Count as `take` does; return the seconds to wait instead of refusing."""
        if not who.counted:
            return 0.0
        name, rate = self._key(who, person)
        return self.seconds_until(f"{rate} {name}", cost, self._per_second * rate, self._at_once * rate)

    @staticmethod
    def _key(who: Identified, person: str) -> tuple[str, float]:
        if who.speaks and person:
            return person, 1.0
        return who.name, SERVICE_FACTOR if who.trusted else 1.0

    async def stranger(self, address: str) -> None:
        """Count a failed authentication from an address, and wait where there were too many."""
        if self.seconds_until(f"stranger {address}", 1.0, STRANGERS_PER_SECOND, STRANGERS_AT_ONCE):
            await self._be_late(f"stranger {address}")

    async def hold_back(self, name: str) -> bool:
        """Wait where `name` was refused often in the last moments; return False where so many such calls wait that the connection should go."""
        if not self.seconds_until(f"refused {name}", 1.0, PATIENT_REFUSALS, PATIENT_REFUSALS):
            return True
        if self._late.get(name, 0) >= LATE_AT_MOST:
            return False
        await self._be_late(name)
        return True

    async def _be_late(self, name: str) -> None:
        late = self._late[name] = self._late.get(name, 0) + 1
        try:
            await asyncio.sleep(max(LATE_SECONDS, late / LATE_PER_SECOND))
        finally:
            self._late[name] -= 1
            if not self._late[name]:
                del self._late[name]

    def reported(self, peer: str, entries: int) -> float:
        """Count the entries of an agent's message; return the seconds to wait before they are taken."""
        if not entries:
            return 0.0
        return self.seconds_until(f"reported {peer}", entries, REPORTED_PER_SECOND, REPORTED_AT_ONCE)

    # --- messages that are being read ---

    @contextlib.asynccontextmanager
    async def reading(self, who: Identified | None) -> AsyncIterator[None]:
        """Wait for a place to read a message in: who sends parts of many gets a few into memory.  Of strangers each connection has one."""
        if who is None:
            yield
            return
        places = self._reading.get(who.name)
        if places is None:
            most = MANY_READ_AT_ONCE if who.trusted or not who.counted else READ_AT_ONCE
            places = self._reading[who.name] = _Places(asyncio.Semaphore(most))
        places.users += 1
        try:
            async with places.free:
                yield
        finally:
            places.users -= 1
            if not places.users:
                self._reading.pop(who.name, None)

    # --- calls on their way to the deciding thread ---

    async def turn(self, who: Identified | None, person: str) -> Callable[[], None]:
        """Wait until no other call of a person is on its way, and where they made many, no call of another such person; return what ends the turn.

        So nobody waits for the hundreds of calls that somebody else makes at once: those who do wait for themselves, and for each other.
        The function may be called more than once.
        """
        if who is None or not who.counted or (key := self._key(who, person))[1] != 1.0:
            return lambda: None
        name, rate = key
        places = self._turns.setdefault(name, _Places(asyncio.Semaphore(1)))
        places.users += 1

        def leave() -> None:
            places.users -= 1
            if not places.users:
                del self._turns[name]

        with contextlib.ExitStack() as taken:
            taken.callback(leave)
            await places.free.acquire()
            taken.callback(places.free.release)
            bucket = self._buckets.get(f"{rate} {name}")
            if bucket is not None and self._at_once - bucket.left > CALLS_IN_TURN:
                await self._busy.acquire()
                taken.callback(self._busy.release)
            return taken.pop_all().close

    # --- open calls ---

    def begin(self, who: Identified, person: str, *, stream: bool = False) -> Callable[[], None]:
        """Count an open call; return the function that ends it.  `stream`: its caller may send messages for as long as it is open.

        Raises
        ------
        TooMany
            With a sentence.
        """
        name, rate = self._key(who, person)
        if not who.counted or rate != 1.0:
            return lambda: None
        if self._open.get(name, 0) >= OPEN_CALLS:
            raise TooMany(
                say(
                    "%(name)s has %(n)s calls open, as many as a person may have; end one of them first.",
                    name=name[:80],
                    n=OPEN_CALLS,
                ),
                0.0,
            )
        if stream and self._streams.get(name, 0) >= OPEN_STREAMS:
            raise TooMany(
                f"{name[:80]} has {OPEN_STREAMS} streams open that hold leases, as many as a person may have; end one of them first.",
                0.0,
            )
        if stream:
            self._streams[name] = self._streams.get(name, 0) + 1
        self._open[name] = self._open.get(name, 0) + 1

        def end() -> None:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]
            if stream:
                self._streams[name] -= 1
                if not self._streams[name]:
                    del self._streams[name]

        return end
