"""The result of a scheduling cycle: who has a lease now, and the situation of those who wait."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpukernel.common.model import Lease

__all__ = ["CycleResult", "Granted"]


@dataclass(frozen=True)
class Granted:
    """A request and the lease that it has; `fresh` where the lease was made now, so that its workers have to be started, and `pool` for whose call."""

    key: str
    lease_id: str
    fresh: Lease | None = None
    pool: str = ""


@dataclass
class CycleResult:
    """The situation of those who wait after a cycle, by the keys of their requests.

    Attributes
    ----------
    starts
        When a request starts at the latest: as promised, or for a quota when the next period begins; seconds since the epoch.
    reasons
        The sentence about the quota that holds a request back.
    reserved
        For whom the room is reserved that a request could have.
    absent
        Requests for devices of which the pool has none now.
    refused
        The constraint of the database by which it refused the grant that was decided.
    """

    starts: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    reserved: dict[str, str] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)

    def passes_over(self, key: str) -> bool:
        """Return whether a request gets nothing now for a reason that is nobody else's, so that it counts for nothing in the order."""
        return key in self.reasons or key in self.absent or key in self.refused
