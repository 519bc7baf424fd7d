"""Counts of kernels, and the figures that follow from them.

Counts are those of ``gpukernel/native/common/kernel_table.h``, exact and the same on every machine; seconds are not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, fields
from typing import Any

__all__ = ["KernelCount", "KernelTier", "LineShare", "ProfiledKernels", "RangeUse"]

LANES, SECTOR_BYTES = 32, 32


@dataclass(frozen=True)
class KernelTier:
    """One kernel since its worker began: launches, seconds, and which tier runs it.

    `reason` says why it is not compiled, or not yet; it is empty where `compiled` is true.
    """

    device: int
    name: str
    compiled: bool
    reason: str
    launches: int
    compiled_launches: int
    failed: int
    seconds: float
    compile_seconds: float


@dataclass(frozen=True)
class LineShare:
    """Warps' instructions in one line of the source, or of the PTX where `file` is empty."""

    file: str
    line: int
    instructions: int


@dataclass(frozen=True)
class KernelCount:
    """The counted launches of one kernel with blocks of one shape, within one range of the program's.

    Requests are instructions of warps, bytes those that threads ask for, `…_distinct` the different ones of each request, and
    sectors have 32 bytes.  `shared_passes` is what requests take where each of 32 banks gives one word at a time, `shared_least` what
    they would take without conflicts.  `lanes` are threads that came to instructions, `executed` those whose predicate let them execute.
    """

    device: int
    name: str
    range: str
    compiled: bool
    reason: str
    block: tuple[int, int, int]
    registers: int
    shared_memory_bytes: int
    resident_blocks: int
    most_warps: int
    limit: str
    launches: int
    failed: int
    blocks: int
    seconds: float
    instructions: int
    lanes: int
    executed: int
    branches: int
    divergent: int
    barriers: int
    load_requests: int
    load_bytes: int
    load_distinct: int
    load_sectors: int
    store_requests: int
    store_bytes: int
    store_distinct: int
    store_sectors: int
    shared_requests: int
    shared_bytes: int
    shared_passes: int
    shared_least: int
    local_requests: int
    local_bytes: int
    constant_requests: int
    atomic_requests: int
    atomic_threads: int
    atomic_turns: int
    other_memory: int
    lines: tuple[LineShare, ...]

    @property
    def lane_share(self) -> float:
        """The part of a warp's 32 lanes that executes an instruction, on the average; 0 to 1."""
        return self.executed / (LANES * self.instructions) if self.instructions else 0.0

    @property
    def divergent_share(self) -> float:
        """The part of the branches with a predicate at which a warp parts; 0 to 1."""
        return self.divergent / self.branches if self.branches else 0.0

    @property
    def sectors_per_load(self) -> float:
        """Sectors of global memory that a load of a warp touches, on the average; 4 for 32 consecutive words of 4 bytes."""
        return self.load_sectors / self.load_requests if self.load_requests else 0.0

    @property
    def sectors_per_store(self) -> float:
        """The same for stores."""
        return self.store_sectors / self.store_requests if self.store_requests else 0.0

    @property
    def coalescing(self) -> float:
        """The part of the bytes in all touched sectors that somebody asked for; 0 to 1."""
        sectors = self.load_sectors + self.store_sectors
        return (self.load_distinct + self.store_distinct) / (SECTOR_BYTES * sectors) if sectors else 0.0

    @property
    def global_bytes(self) -> int:
        """Bytes of global memory that threads loaded and stored."""
        return self.load_bytes + self.store_bytes

    @property
    def bank_conflicts(self) -> int:
        """Passes of shared memory beyond those that were needed."""
        return self.shared_passes - self.shared_least

    @property
    def bank_ways(self) -> float:
        """Passes of shared memory for each that was needed: 1 without conflicts, up to 32."""
        return self.shared_passes / self.shared_least if self.shared_least else 0.0

    @property
    def occupancy(self) -> float:
        """Warps that a multiprocessor can have of such blocks, by those that it can have at most; 0 to 1."""
        threads = self.block[0] * self.block[1] * self.block[2]
        warps = self.resident_blocks * -(-threads // LANES)
        return min(1.0, warps / self.most_warps) if self.most_warps else 0.0


DERIVED = (
    "lane_share",
    "divergent_share",
    "sectors_per_load",
    "sectors_per_store",
    "coalescing",
    "global_bytes",
    "bank_conflicts",
    "bank_ways",
    "occupancy",
)


@dataclass(frozen=True)
class RangeUse:
    """The counted launches within a range that the program marked (NVTX), and within the ranges inside of it.

    `path` is the names of the ranges around it and its own, the outermost first; `share` is the part of the time of all kernels, 0 to 1.
    """

    path: tuple[str, ...]
    launches: int
    seconds: float
    share: float


@dataclass(frozen=True)
class ProfiledKernels:
    """All that was counted; `others` are launches that found no room in the table."""

    kernels: tuple[KernelCount, ...] = ()
    others: int = 0

    def ranges(self) -> list[RangeUse]:
        """Return each range that had launches: behind it those inside of it, and of neighbours first the one that took longest."""
        launches: Counter[tuple[str, ...]] = Counter()
        seconds: dict[tuple[str, ...], float] = defaultdict(float)
        for one in self.kernels:
            names = tuple(one.range.split("/")) if one.range else ()
            for depth in range(len(names) + 1):
                launches[names[:depth]] += one.launches
                seconds[names[:depth]] += one.seconds

        def order(path: tuple[str, ...]) -> list[tuple[float, str]]:
            return [(-seconds[path[: depth + 1]], name) for depth, name in enumerate(path)]

        whole = seconds[()] or 1.0
        return [
            RangeUse(path, launches[path], seconds[path], seconds[path] / whole)
            for path in sorted(filter(None, launches), key=order)
        ]

    def data(self) -> dict[str, Any]:
        """Return everything as dictionaries, lists, texts and numbers."""

        def plain(one: KernelCount) -> dict[str, Any]:
            counted = {field.name: getattr(one, field.name) for field in fields(one)}
            counted["block"] = list(one.block)
            counted["lines"] = [
                {"file": line.file, "line": line.line, "instructions": line.instructions}
                for line in one.lines
            ]
            return counted | {name: getattr(one, name) for name in DERIVED}

        return {
            "kernels": [plain(one) for one in self.kernels],
            "ranges": [
                {"path": list(one.path), "launches": one.launches, "seconds": one.seconds, "share": one.share}
                for one in self.ranges()
            ],
            "others": self.others,
        }
