"""Quotas of people's own: whom they hold back, found once, and again when something has changed on which that depends.

A quota of a person, or of a member of a course, concerns nobody but the person.  So a decision looks again only at people for whom something has
changed, and at nobody else whom such a quota holds back, however many those are.

Guarantees
----------
* Whether a request is held back, and by what, follows from these alone: the person's requests and their order, the bounds and the begin of the
  term, the books of the person's accounts, the kinds of devices, the time, and whether somebody holds a call.  After a change of one of them the person's
  requests are looked at again in the next decision, before anything else in it.
* Of books nothing is assumed that the change log does not say (`gpukernel.pool.store.changes`), whichever pool has changed them.
* Time changes what follows from hours: when a period ends, when hours that are held are used up, and when the figure in the sentence becomes another
  one.  From a second before each of these moments on, the person is looked at in every decision.
* `IN_TURN` people whom nobody has a reason to look at are looked at in each decision, those first who were not for longest.  So what this module does not
  know of costs a request at most as many decisions as people wait ÷ `IN_TURN`, not for ever.
* One person's changes make a decision look at that person's requests, of which `gpukernel.common.policy.Policy.most_waiting` may wait, and at nobody else's.

Of one person's requests the first in class and age goes first: one that is held back holds back those behind it, of whichever course, that count in the same quota.
Who is held back takes no part in the order: it counts for no course, and waits for no quota of a course or the pool.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import TypeVar

import sqlalchemy as sa

from gpukernel.common.bounds import MILLION, OPEN, Account, Bounds, Subject
from gpukernel.common.errors import Refused
from gpukernel.common.policy import Policy
from gpukernel.pool.domain.direct_mode import Places, matching_in_mode
from gpukernel.pool.domain.placement import DeviceClass
from gpukernel.pool.domain.quota import HOUR, PERIODS, Refusal, Standing, claim_on, period_end, refusal
from gpukernel.pool.scheduling.pending_request import PendingRequest
from gpukernel.pool.scheduling.queue_index import HeldBack, QueueIndex
from gpukernel.pool.store import quota_usage
from gpukernel.pool.store.lease_queries import PEOPLE_OF
from gpukernel.pool.store.store import Store

__all__ = ["IN_TURN", "MARGIN", "OwnQuotas"]

IN_TURN = 2
"""People who are looked at in each decision without a reason."""

MARGIN = 1.0
"""Seconds before a moment at which time changes something, from which on nothing is taken for known."""

AT_ONCE = 50  # accounts, or leases, that are read in one statement
_OWN = ("person", "student", "instructor")
_Kinds = tuple[tuple[str, int, int], ...]
T = TypeVar("T")


class OwnQuotas:
    """The people whose requests stand in `index`, and what quotas of their own say to them."""

    def __init__(self, index: QueueIndex) -> None:
        self._index = index
        self._everybody = True  # has to be looked at
        self._looked_at: set[str] = set()  # since the last mark
        self._number: int | None = None  # of the newest entry of the change log whose leases are known
        self._now = 0.0
        self._quotas: Mapping[Subject, Bounds] = {}
        self._term = 0.0
        self._kinds: _Kinds = ()
        self._places = Places()
        self._absent: Set[str] = frozenset()
        self._special: Set[str] = frozenset()
        self._when: dict[str, float] = {}  # by person
        self._times: list[tuple[float, str]] = []  # the same as a heap, with some that hold no longer
        self._turns: dict[str, None] = {}  # people with bounds, who was looked at last comes last

    def forget(self) -> None:
        """Look at everybody in the next decision, and take nothing for read of the change log, whose numbers a database that has gone back gives anew."""
        self._everybody, self._number = True, None

    def mark(self) -> None:
        """Begin a transaction that `restore` may take back."""
        self._looked_at = set()

    def restore(self) -> None:
        """Look again at whom was looked at since the last `mark`, since the database has gone back."""
        self._index.doubted |= self._looked_at

    def refresh(
        self,
        db: sa.Connection,
        store: Store,
        policy: Policy,
        kinds: Iterable[DeviceClass],
        places: Places,
        now: float,
        special: Set[str],
        absent: Set[str],
        newcomer: PendingRequest | None = None,
    ) -> dict[Account, Standing]:
        """Look at those for whom something may have changed; return how accounts stand that were read for that.

        Parameters
        ----------
        special
            Keys with a lease or a claim, which a quota neither holds back here nor lets hold back others.
        absent
            Keys that nobody holds a call for, which hold back nobody.
        """
        index, kinds = self._index, list(kinds)
        people = self._changed(db, store, policy, kinds, places, now)
        for key in (absent ^ self._absent) | (special ^ self._special):
            if key in index.requests:
                people.add(index.requests[key].holder.person)
        self._absent, self._special = frozenset(absent), frozenset(special)
        people |= index.doubted
        people.update([one for one, _ in zip(self._turns, range(IN_TURN), strict=False)])
        self._looked_at |= people
        index.doubted = set()
        return self._look(db, policy, kinds, places, people, newcomer)

    # --- who has to be looked at ---

    def _changed(
        self,
        db: sa.Connection,
        store: Store,
        policy: Policy,
        kinds: list[DeviceClass],
        places: Places,
        now: float,
    ) -> set[str]:
        """Return the people for whom bounds, devices, books or the time may have changed something."""
        index, people = self._index, set[str]()
        everybody, self._everybody = self._everybody, True  # until it is known who, should a statement fail
        if policy.quotas is not self._quotas:
            everybody |= policy.quotas != self._quotas
            self._quotas = policy.quotas
        counts = tuple((kind.name, kind.memory_bytes, kind.count) for kind in kinds)
        everybody |= policy.term_begins != self._term or {k[:2] for k in counts} != {
            k[:2] for k in self._kinds
        }
        if counts != self._kinds or (places is not self._places and places != self._places):
            people |= {one.holder.person for one in index.requests.values() if _confined(one)}
        self._term, self._kinds, self._places, self._now = policy.term_begins, counts, places, now
        if not any(subject.kind in _OWN for subject in policy.quotas):
            self._number = None  # who cares
        elif self._number is None:
            self._number, everybody = store.changes.newest(db), True
        else:
            self._number, leases = store.changes.leases_after(db, self._number)
            everybody |= leases is None
            for some in _parts(sorted(leases or ())):
                known = {row.id: row.person for row in PEOPLE_OF.rows(db, leases=some)}
                people.update(known.values())
                everybody |= len(known) < len(some)
        while self._times and self._times[0][0] <= now:
            when, person = heapq.heappop(self._times)
            if self._when.get(person) == when:
                people.add(person)
        self._everybody = False
        return set(index.by_person) if everybody else people

    # --- looking ---

    def _look(
        self,
        db: sa.Connection,
        policy: Policy,
        kinds: list[DeviceClass],
        places: Places,
        people: Iterable[str],
        newcomer: PendingRequest | None,
    ) -> dict[Account, Standing]:
        index = self._index
        theirs = {}
        for person in people:
            self._when.pop(person, None)
            self._turns.pop(person, None)
            requests = [index.requests[key] for key in index.by_person.get(person, ())]
            if any(
                policy.bounds(account, one.role) != OPEN for one in requests for account in one.accounts[2:]
            ):
                theirs[person] = requests
                self._turns[person] = None
            else:
                for one in requests:
                    index.hold_back(one, None)
        roles = {a: one.role for requests in theirs.values() for one in requests for a in one.accounts[2:]}
        if newcomer is not None and newcomer.holder.person in theirs:
            roles |= dict.fromkeys(newcomer.accounts, newcomer.role)
        known: dict[Account, Standing] = {}
        for some in _parts(list(roles)):
            known |= quota_usage.standings(db, policy, some, roles, self._now)
        for person, requests in theirs.items():
            self._look_at(policy, kinds, places, requests, known)
            when = min(self._next(policy, known[a]) for a in {a for r in requests for a in r.accounts[2:]})
            if math.isfinite(when):
                self._when[person] = when
                heapq.heappush(self._times, (when, person))
        if len(self._times) > 2 * len(self._when) + 64:
            self._times = sorted((when, person) for person, when in self._when.items())
        return known

    def _look_at(
        self,
        policy: Policy,
        kinds: list[DeviceClass],
        places: Places,
        requests: list[PendingRequest],
        known: Mapping[Account, Standing],
    ) -> None:
        """Find which requests of a person are held back, the first in class and age first."""
        index, waited_for = self._index, dict[tuple[Account, bool], str]()
        for one in sorted(requests, key=lambda one: (index.rank(one.key), one.ticket)):
            if one.key in self._special:
                index.hold_back(one, None)
                continue
            why = self._behind(one, waited_for)
            if why is None and (no := self._refusal(policy, kinds, places, one, known)) is not None:
                ahead = no.ahead or no.sentence
                why = HeldBack(no.sentence, no.account, no.until, no.interactive, ahead)
                if one.key not in self._absent:
                    waited_for.setdefault((no.account, no.interactive), ahead)
            index.hold_back(one, why)

    @staticmethod
    def _behind(one: PendingRequest, waited_for: Mapping[tuple[Account, bool], str]) -> HeldBack | None:
        """Return what holds a request back that is behind others of its person."""
        for account in one.accounts[2:] if waited_for else ():
            for interactive in (False, True) if one.wanted.priority == "interactive" else (False,):
                if sentence := waited_for.get((account, interactive)):
                    return HeldBack(sentence, account)
        return None

    def _refusal(
        self,
        policy: Policy,
        kinds: list[DeviceClass],
        places: Places,
        one: PendingRequest,
        known: Mapping[Account, Standing],
    ) -> Refusal | None:
        """Return the person's own quota that a request does not fit into on any kind of device; None where there is none."""
        try:
            fitting = matching_in_mode(one.wanted, kinds, places)
        except Refused:
            return None  # it waits for what is not there
        levels = [
            known[a]
            if known[a].role == one.role
            else replace(known[a], role=one.role, bounds=policy.bounds(a, one.role))
            for a in one.accounts[2:]
        ]
        found = None
        for kind in fitting:
            claim = claim_on(one.wanted, kind, one.longest)
            found = refusal(claim, levels, self._now, policy.term_begins, one.wanted.model)
            if found is None:
                return None
        return found

    def _next(self, policy: Policy, standing: Standing) -> float:
        """Return from when on time may have changed what an account's hours say; infinity where it changes nothing."""
        when, rate = math.inf, standing.share / MILLION
        # Of a member each role that the person's requests may have.
        roles = ("student", "instructor") if standing.account.kind == "member" else ("",)
        bounds = [policy.bounds(standing.account, role) for role in roles]
        for period, spent in zip(PERIODS, standing.spent, strict=True):
            for most in bounds:
                if (hours := getattr(most, f"hours_{period}")) is None:
                    continue
                when = min(when, period_end(period, self._now, policy.term_begins) or math.inf)
                if rate:
                    figure = (
                        math.floor(spent / HOUR * 10 + 0.5) + 0.5
                    ) / 10  # from which on it is another one
                    moment = hours if spent < hours * HOUR else figure
                    when = min(when, self._now + max(moment * HOUR - spent, 0.0) / rate)
        return when - MARGIN

    # --- what people are told ---

    def is_absent(self, key: str) -> bool:
        """Return whether nobody held a call for a request in the last decision."""
        return key in self._absent

    def waited_for(self, account: Account, priority: str) -> str:
        """Return the sentence of somebody whose person has a request that waits for an own quota; empty where there is none."""
        for key in self._index.by_person.get(account.person, ()) if account.person else ():
            why = self._index.held.get(key)
            if why is None or not why.ahead or why.account != account or key in self._absent:
                continue
            if priority == "interactive" or not why.interactive:
                return why.ahead
        return ""


def _confined(one: PendingRequest) -> bool:
    """Return whether more than the kinds of devices decides where a request may lie."""
    wanted = one.wanted
    return wanted.mode != "remote" or bool(wanted.server or wanted.device) or wanted.devices > 1


def _parts(names: list[T]) -> Iterable[list[T]]:
    return (names[first : first + AT_ONCE] for first in range(0, len(names), AT_ONCE))
