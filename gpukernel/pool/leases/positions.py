"""Positions: a call's place in the queue, its estimated start, and the reason why it waits."""

from __future__ import annotations

from gpukernel.common.errors import Refused
from gpukernel.common.i18n import say, sentence_of
from gpukernel.common.model import Queued, SliceRequest
from gpukernel.pool.domain.direct_mode import Places, matching_in_mode
from gpukernel.pool.domain.placement import DeviceClass
from gpukernel.pool.scheduling.request_queue import RequestQueue, reason_for_no_room
from gpukernel.pool.store.store import Store

__all__ = ["Positions"]


class Positions:
    """The positions in one queue; what all of them need is read once after each change."""

    def __init__(self, store: Store, queue: RequestQueue) -> None:
        self._store = store
        self._queue = queue
        self._kinds: tuple[list[DeviceClass], Places] | None = None
        # By servers and devices, where only some come into question, and kinds.
        self._free: dict[object, int] = {}
        self._announced: list[DeviceClass] | None = None

    def forget(self) -> None:
        """Read anew what is free, since something has changed."""
        self._free, self._kinds, self._announced = {}, None, None

    def refusal_code(self, key: str) -> str:
        """Return the code with which a call that does not wait any longer is refused."""
        if self._queue.refused(key):
            return "failed"
        return "quota" if self._queue.reason(key) else "full"

    def queued(self, key: str, request: SliceRequest, now: float) -> Queued:
        """Return the position of the request with a key."""
        position = self._queue.place(key)
        quota = self._queue.reason(key)
        if quota:
            reason: str = say(
                "%(quota)s Waiting: %(n)s; position %(position)s in the queue.",
                quota=quota,
                n=len(self._queue),
                position=position,
            )
        else:
            reason = self._why_no_room(key, request, position)
        return Queued(position, self._queue.estimate(key, now), reason, quota or self._queue.reserved(key))

    def _why_no_room(self, key: str, request: SliceRequest, position: int) -> str:
        """Return why nothing is free for a request that no quota holds back."""
        if self._kinds is None:
            self._kinds = self._store.devices.classes(), self._store.devices.places()
        every, places = self._kinds
        try:
            kinds = matching_in_mode(request, every, places)
        except Refused as none:  # the servers it could be on are away, and may come back
            if self._is_brought(request, places):
                return say(
                    "%(why)s It comes for those who wait: position %(position)s in the queue.",
                    why=sentence_of(none),
                    position=position,
                )
            return say(
                "%(why)s The request keeps its place: position %(position)s in the queue.",
                why=sentence_of(none),
                position=position,
            )
        place = places.of(request)
        what = (place.servers, place.devices) if place else None, tuple(kinds)
        if what not in self._free:
            self._free[what] = self._store.devices.most_free(kinds, place)
        no_room = reason_for_no_room(request, kinds, self._free[what], self._queue.reserved(key))
        return say("%(no_room)s; position %(position)s in the queue.", no_room=no_room, position=position)

    def _is_brought(self, request: SliceRequest, places: Places) -> bool:
        """Return whether a supply has announced what a request waits for."""
        if self._announced is None:
            self._announced = self._store.devices.announced(None, self._store.clock.steady())
        try:
            return bool(matching_in_mode(request, self._announced, places))
        except Refused:
            return False
