"""The key by which the agent knows a slice, and the log fields that belong to one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from gpukernel.common.logs import fields

__all__ = ["Key", "LogFields", "lease_only"]

Key: TypeAlias = tuple[str, int]
"""Lease id and device index."""

LogFields: TypeAlias = Callable[[Key], dict[str, dict[str, str]]]
"""Gives logging's ``extra`` for a line about a slice."""


def lease_only(key: Key) -> dict[str, dict[str, str]]:
    """Return log fields that name the lease of `key` alone."""
    return fields(lease=key[0])
