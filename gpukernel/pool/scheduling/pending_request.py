"""One pending request, as the scheduling cycle sees it."""

from __future__ import annotations

from dataclasses import dataclass

from gpukernel.common.bounds import Account
from gpukernel.common.model import Holder, SliceRequest
from gpukernel.common.slice_request import class_rank
from gpukernel.pool.store import quota_usage

__all__ = ["PendingRequest"]


@dataclass(frozen=True)
class PendingRequest:
    """One request that waits; `since` is when it came first, `seen` a steady time when its call was known to be open, and
    `pool` the process that has held it since; empty: nobody does."""

    key: str
    wanted: SliceRequest
    holder: Holder
    role: str
    ttl: float
    longest: float
    since: float
    pool: str
    seen: float
    size: int = 0  # devices' worth in millionths, on the largest device that it could get
    ticket: int = 0
    # Devices on which leases give way to it, or did, and the steady time from which on they are its own.
    claims: tuple[str, ...] = ()
    claims_from: float = 0.0

    @property
    def course(self) -> str:
        """Return the course that it is for; empty for none."""
        return self.holder.course

    def rank(self, now: float) -> int:
        """Return the rank of its class at a wall time, the lowest first; waiting lowers it (`PROMOTED_AFTER`)."""
        return class_rank(self.wanted.priority, now - self.since)

    @property
    def accounts(self) -> tuple[Account, ...]:
        """Return the accounts whose quotas it counts in, from the pool down."""
        return quota_usage.accounts_of(self.holder.person, self.holder.course)
