"""Grants that the database refused although the decision found room for them: the books disagree with each other about these requests.

Guarantees
----------
* Such a request holds nobody up: it is passed over, and counts for nothing, until it is its time to be tried again.
* That time comes `FIRST_SECONDS` after the first refusal, and after each further one twice as late, up to `MOST_SECONDS`.
* A change of courses, members, groups or quotas brings its time at once, since it may have been the reason.
* Who asks for something else with the same key begins anew.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from gpukernel.common.i18n import say
from gpukernel.common.model import Holder, SliceRequest
from gpukernel.common.policy import Policy

__all__ = ["FIRST_SECONDS", "MOST_SECONDS", "RefusedGrants"]

FIRST_SECONDS = 1.0
MOST_SECONDS = 300.0


class _Asked(Protocol):
    """A request, as far as it matters here."""

    @property
    def key(self) -> str:
        """Its key."""
        ...

    @property
    def wanted(self) -> SliceRequest:
        """The slice that it asks for."""
        ...

    @property
    def holder(self) -> Holder:
        """The person who asks, and from where."""
        ...


R = TypeVar("R", bound=_Asked)


@dataclass(frozen=True)
class _Refusal(Generic[R]):
    request: R
    constraint: str
    policy: Policy
    wait: float
    until: float  # in steady time


class RefusedGrants(Generic[R]):
    """The requests that the database refused to one pool process, by their keys."""

    def __init__(self) -> None:
        self._known: dict[str, _Refusal[R]] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._known

    def passed_over(self, waiting: Mapping[str, R], policy: Policy, steady: float) -> set[str]:
        """Return the keys of those that are not to be tried now; forget those that do not wait any more."""
        for key, known in list(self._known.items()):
            request = waiting.get(key)
            if request is None or _asked(request) != _asked(known.request):
                del self._known[key]
        return {
            key
            for key, one in self._known.items()
            if one.policy is policy and one.until - one.wait <= steady < one.until
        }

    def decided(self, passed_over: Container[str]) -> None:
        """Note that a decision passed over these alone: the others that it does not `refuse` again wait for something else."""
        for key, known in self._known.items():
            if key not in passed_over and known.constraint:
                self._known[key] = replace(known, constraint="")

    def refuse(self, request: R, constraint: str, policy: Policy, steady: float) -> float:
        """Note that the database refused a request; return the seconds until it is tried again."""
        before = self._known.get(request.key)
        wait = FIRST_SECONDS if before is None else min(2 * before.wait, MOST_SECONDS)
        self._known[request.key] = _Refusal(request, constraint, policy, wait, steady + wait)
        return wait

    def sentence(self, key: str) -> str:
        """Return the sentence for whoever waits with a key that was refused; empty for others."""
        known = self._known.get(key)
        if known is None or not known.constraint:
            return ""
        return say(
            "The pool found room, but its database refused this slice (%(constraint)s); it is tried again by itself. "
            "Tell the pool's administrator.",
            constraint=known.constraint,
        )


def _asked(request: _Asked) -> tuple[SliceRequest, Holder]:
    return request.wanted, request.holder
