"""What copying costs at all: one core's memcpy between two buffers larger than any cache."""

from __future__ import annotations

import ctypes
import statistics
import time

BYTES = 256 << 20


def memory_bandwidth(rounds: int = 5) -> float:
    """Bytes per second that one ``memcpy`` of 256 MiB moves; the median of several."""
    source, destination = ctypes.create_string_buffer(BYTES), ctypes.create_string_buffer(BYTES)
    ctypes.memset(source, 1, BYTES), ctypes.memset(destination, 1, BYTES)
    figures = []
    for _ in range(rounds):
        start = time.perf_counter()
        ctypes.memmove(destination, source, BYTES)
        figures.append(BYTES / (time.perf_counter() - start))
    return statistics.median(figures)
