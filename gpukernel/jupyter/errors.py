"""The error of a kernel that gets no slice."""

from __future__ import annotations

__all__ = ["SliceUnavailable"]


class SliceUnavailable(RuntimeError):
    """The kernel got no slice; the text is one sentence for the person who started it."""
