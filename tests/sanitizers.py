"""Variables that ``make sanitize`` puts into the environment of the tests."""

from __future__ import annotations

import os

VARIABLES = ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS")


def environment() -> dict[str, str]:
    """Return what a program needs that loads libraries which were built with a sanitizer."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def without() -> dict[str, str]:
    """Return the environment of programs of others, such as compilers, which do not run beside a sanitizer."""
    return {name: value for name, value in os.environ.items() if name not in VARIABLES}
