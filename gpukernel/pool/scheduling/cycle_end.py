"""The end of a scheduling cycle: where nobody who is still to be looked at could get anything."""

from __future__ import annotations

import functools

from gpukernel.common.bounds import Account
from gpukernel.common.policy import Policy
from gpukernel.pool.domain.fairness import FairOrder
from gpukernel.pool.domain.placement import DeviceClass
from gpukernel.pool.scheduling.backfill_state import BackfillState
from gpukernel.pool.scheduling.making_way import MakingWay
from gpukernel.pool.scheduling.pending_request import PendingRequest
from gpukernel.pool.scheduling.queue_index import QueueIndex

__all__ = ["DEPTH", "LOANS", "CycleEnd"]

DEPTH = 200
"""For so many requests room is looked for in one cycle; those behind them wait for the next one."""

LOANS = 16
"""For so many requests room is looked for in one cycle on what is reserved for others."""


class CycleEnd:
    """The rest of a cycle, for those behind, with this policy, these kinds of devices, and so on as `SchedulingCycle` has them."""

    def __init__(
        self,
        policy: Policy,
        kinds: list[DeviceClass],
        state: BackfillState,
        index: QueueIndex,
        way: MakingWay,
    ) -> None:
        self._policy, self._kinds, self._state, self._index, self._way = policy, kinds, state, index, way

    def closed(self) -> bool:
        """Return whether somebody further ahead waits for each kind that there is."""
        return bool(self._kinds) and self._state.closes(self._kinds)

    def nobody_may(self, order: FairOrder[PendingRequest], tried: int, own: int, interactive: int) -> bool:
        """Return whether nobody who is still to be looked at could get anything, having neither lease nor claim; `interactive` of them are."""
        reserving = any(order.left(course) for course in self.reserving)
        if tried >= DEPTH:
            return own >= DEPTH or not reserving
        if not self.closed() or reserving:
            return False
        if self._state.placements and self._state.loans < LOANS and self._lengths_are_known:
            return False
        return not (interactive and self._way.may_look())

    def all_wait_for_quotas(self, order: FairOrder[PendingRequest]) -> bool:
        """Return whether somebody waits for the quota of each course that is still to be served, or for the pool's."""
        full, courses = self._state.full, self._courses
        while courses and not (order.left(courses[-1]) and Account("course", courses[-1]) not in full):
            courses.pop()  # it stays so
        return not courses or Account("pool") in full

    @functools.cached_property
    def _courses(self) -> list[str]:
        """The courses that wait, until `all_wait_for_quotas` finds nobody of them who could get anything."""
        return list(self._index.lines)

    @functools.cached_property
    def reserving(self) -> frozenset[str]:
        """The courses whose reservation is open."""
        if not (placements := self._state.placements):
            return frozenset()
        courses = {reservation.course for reservation in self._policy.reservations}
        return frozenset(c for c in courses if placements.open_for(c, self._state.now))

    @functools.cached_property
    def _lengths_are_known(self) -> bool:
        """True where it may be known of a lease that it ends by itself."""
        bounds = self._policy.quotas.values()
        return bool(self._index.limited) or any(one.longest_seconds is not None for one in bounds)

    def may_yet(self, request: PendingRequest) -> bool:
        """Return whether something could be left for `request` although others wait for every kind.

        That is room reserved for its course, or room that the others cannot use.
        """
        state = self._state
        if not state.placements:
            return False
        if state.placements.open_for(request.course, state.now) and state.most_own(request.course) > 0:
            return True
        return (
            state.loans < LOANS
            and self._policy.longest(request.accounts, request.role, request.longest) is not None
        )
