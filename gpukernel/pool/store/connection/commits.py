"""Commits to PostgreSQL: made at once, on disk a moment later, and nobody outside hears of one before.

A commit that waits for the disk holds the ledger's lock meanwhile, and no other pool decides.  So commits do not wait; what leaves the pool
does (`gpukernel.pool.doors.guard`).  The database writes its log in order: one flush makes every commit before it last, of all pools,
and many answers share it.

Guarantees
----------
* `Commits.lasting` returns once the commits that were made or read here before `Commits.number` was taken outlive a crash of the database.
* Where the database crashes first, it raises `DatabaseLost`, also for what was on disk just in time: nobody can tell the two apart.
* From then on it raises for every such number, until `Commits.renewed` says that the process has forgotten what it had read.
* SQLite's commits outlive the process when they are made: nothing waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

import sqlalchemy as sa

from gpukernel.common.errors import DatabaseLost
from gpukernel.common.i18n import say
from gpukernel.pool.store.counters import Counters

__all__ = ["Commits"]

log = logging.getLogger(__name__)

# A record in the log that means nothing to anybody: committing it waits for the disk, and so for all that stands before it.
_FLUSH = sa.text("SELECT pg_logical_emit_message(true, 'gpukernel', '')")

_WAITS = sa.text(
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)
"""Flushes wait for the disk also where the server's settings let commits not wait."""

CLOSE_SECONDS = 1.0

LOST = say("The pool's database was away. Ask again.")


class Commits:
    """The commits of one pool process, in the order in which they were made.

    Parameters
    ----------
    connect
        Returns a connection in which each statement is a transaction that waits for the disk.
    counters
        Of this process: the waits are counted there.

    Attributes
    ----------
    number
        Grows with every commit that somebody outside may hear of; only the deciding thread changes it.
    """

    def __init__(self, connect: Callable[[], sa.Connection], counters: Counters | None = None) -> None:
        self._connect = connect
        self._counters = counters or Counters()
        self.number = 0
        self._announced = 0
        self._lasting = 0
        self._lost = 0
        self._flusher: sa.Connection | None = None
        self._state = threading.Condition()
        self._waiting = set[tuple[int, asyncio.AbstractEventLoop, asyncio.Future[None]]]()
        self._thread: threading.Thread | None = None
        self._flushes = False  # the thread, through the connection for flushes
        self._closed = False

    # --- the deciding thread ---

    def made(self) -> None:
        """Count a commit, or one of another pool's that was read."""
        self.number += 1

    @property
    def broken(self) -> bool:
        """Return whether nothing reaches the disk before `renewed`."""
        return self._flusher is None

    def renewed(self) -> None:
        """Begin anew, since the deciding thread has a new connection and has forgotten what it read through the last one.

        The connection for flushes is made after that one and before any commit: whatever breaks it breaks both, or comes before.
        """
        flusher = self._connect()
        flusher.execute(_WAITS)
        with self._state:
            before, self._flusher = self._flusher, flusher
            self._lost = self.number
            self.number += 1
            if self._flushes:  # its thread closes it, however long that flush takes; another one goes on
                before = self._thread = None
                self._flushes = False
            self._settle()
        if before is not None:
            _close(before)

    def announce(self) -> int:
        """Return `number`, and have what was committed up to now flushed: an answer that waits for that is on its way."""
        if not self.is_lasting(self.number):
            with self._state:
                self._announced = self.number
                with contextlib.suppress(RuntimeError):  # who waits for it says so
                    self._wake()
        return self.number

    # --- whoever sends something out ---

    def is_lasting(self, number: int) -> bool:
        """Return whether nothing has to be waited for."""
        return number == 0 or self._lost < number <= self._lasting

    async def lasting(self, number: int) -> None:
        """Return once commit `number`, and those before it, are on disk.

        Raises
        ------
        DatabaseLost
            Where they may not be there any more.
        """
        if self.is_lasting(number):
            return
        with self._state:
            if number <= self._lost:
                raise DatabaseLost(LOST)
            if number <= self._lasting:
                return
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            waiting = (number, loop, future)
            self._waiting.add(waiting)
            self._wake()
        try:
            with self._counters.timing("commit_waits", "commit_wait_seconds"):
                await future
        except asyncio.CancelledError:
            with self._state:
                self._waiting.discard(waiting)
            raise

    def _wake(self) -> None:
        """Have the thread look, which is made where there is none; whoever calls holds the lock."""
        if self._thread is None and not self._closed:
            thread = threading.Thread(target=self._work, name="gpukernel-flush", daemon=True)
            self._thread = thread
            try:
                thread.start()
            except RuntimeError:  # the system has no thread left; whoever asks next tries again
                self._thread = None
                raise
        self._state.notify_all()

    # --- the thread that waits for the disk ---

    def _is_due(self) -> bool:
        return bool(self._waiting) or self._announced > max(self._lasting, self._lost)

    def _work(self) -> None:
        own = threading.current_thread()
        while True:
            with self._state:
                self._state.wait_for(lambda: self._is_due() or self._closed or self._thread is not own)
                if self._closed or self._thread is not own:
                    return
                # Whoever waits or announces took a number after its commit was made.
                target = max((number for number, _, _ in self._waiting), default=0)
                target, flusher = max(target, self._announced), self._flusher
                self._flushes = flusher is not None
            error: Exception | None = None
            if flusher is not None:
                try:
                    flusher.execute(_FLUSH)
                except Exception as failure:  # whatever it was, whoever waits is told
                    error = failure
            with self._state:
                is_last = self._thread is not own
                if not is_last:
                    self._flushes = False
                    if error is None and flusher is not None:
                        self._lasting = max(self._lasting, target)
                    elif flusher is self._flusher:
                        self._lost, self._flusher = self.number, None
                        if error is not None:
                            log.warning(
                                "commits may be lost, since a flush failed: %s", " ".join(str(error).split())
                            )
                    self._settle()
            if flusher is not None and (is_last or error is not None):
                _close(flusher)

    def _settle(self) -> None:
        """Tell those whose commits are on disk or lost; whoever calls holds the lock."""
        settled = max(self._lasting, self._lost)
        over = {one for one in self._waiting if one[0] <= settled}
        self._waiting -= over
        for number, loop, future in over:
            with contextlib.suppress(RuntimeError):  # that loop is closed
                loop.call_soon_threadsafe(_tell, future, number <= self._lost)

    def close(self) -> None:
        """End the thread; one that waits for a disk that does not answer is left to itself."""
        with self._state:
            self._closed = True
            self._state.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
            if self._thread.is_alive():
                return
        if self._flusher is not None:
            _close(self._flusher)


def _close(connection: sa.Connection) -> None:
    with contextlib.suppress(sa.exc.SQLAlchemyError):
        connection.close()


def _tell(future: asyncio.Future[None], lost: bool) -> None:
    if not future.done():
        if lost:
            future.set_exception(DatabaseLost(LOST))
        else:
            future.set_result(None)
