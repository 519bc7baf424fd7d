"""An event loop whose clock jumps to the next timer, so that a day passes as fast as its work can be done."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any

__all__ = ["VirtualLoop"]


class _NoWait(selectors.BaseSelector):
    """A selector that moves a clock on where others would wait."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.now = 0.0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """See `selectors.BaseSelector`."""
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """See `selectors.BaseSelector`."""
        return self._real.unregister(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; where nothing is, `timeout` seconds have passed."""
        if timeout is None:
            raise RuntimeError("Nothing is left to do in this virtual time, and somebody waits.")
        if not (ready := self._real.select(0)):
            self.now += max(timeout, 0.0)
        return ready

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """See `selectors.BaseSelector`."""
        return self._real.get_map()

    def close(self) -> None:
        """See `selectors.BaseSelector`."""
        self._real.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that never sleeps: `time` begins at 0 and goes straight to the next timer.

    Threads must not be used in it: virtual hours would pass while one works.

    Raises
    ------
    RuntimeError
        Where somebody waits and no timer is left: an error of the simulation, which would hang in real time.
    """

    def __init__(self) -> None:
        self._jumps = _NoWait()
        super().__init__(self._jumps)

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._jumps.now
