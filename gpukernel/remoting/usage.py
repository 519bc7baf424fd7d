"""The use that programs make of one device of a slice."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SliceUsage"]


@dataclass(frozen=True)
class SliceUsage:
    """Bytes of memory, seconds of GPU time, and the busy part (0 to 1) of the last second.

    `peak_bytes` is the most since the peak was last reset, `programs` how many programs are connected.
    """

    limit_bytes: int
    used_bytes: int
    gpu_seconds: float
    gpu_share: float
    programs: int
    peak_bytes: int
    launches: int
