"""The C library of an image, told from its files before its program starts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from gpukernel.engines.containers.bundle import Bundle, open_inside

__all__ = ["complaint", "needed_version"]

_LINKER = Path("/lib64/ld-linux-x86-64.so.2")
_MUSL = Path("/lib/ld-musl-x86_64.so.1")
_LIBRARIES = ("/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6", "/usr/lib/libc.so.6", "/lib/libc.so.6")
_MOST_BYTES = 16 << 20
Version = tuple[int, int]


def _read(bundle: Bundle, path: Path) -> bytes | None:
    """Return a file of the image, or None where it has none."""
    try:
        descriptor = open_inside(bundle, path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        try:
            return file.read(_MOST_BYTES)
        except OSError:
            return None


def _newest(words: Iterable[bytes]) -> Version:
    return max(
        ((int(major), int(minor)) for major, minor in (word.split(b".")[:2] for word in words)),
        default=(0, 0),
    )


def needed_version(libraries: Iterable[Path]) -> Version:
    """Return the newest version of glibc of which one of `libraries` uses a symbol."""
    return max(
        (_newest(re.findall(rb"\0GLIBC_(\d+\.\d+)", one.read_bytes())) for one in libraries), default=(0, 0)
    )


def complaint(bundle: Bundle, needed: Version) -> str:
    """Return why programs of the image cannot load libraries that need glibc `needed`, in a sentence; empty where they can."""
    want = f"{needed[0]}.{needed[1]}"
    if _read(bundle, _LINKER) is None:
        if _read(bundle, _MUSL) is not None:
            return (
                f"This image has musl in place of glibc (as Alpine has), and CUDA programs need glibc {want} or newer: "
                "take an image on Debian, Ubuntu, Fedora or the like."
            )
        return (
            f"This image has no dynamic linker of glibc ({_LINKER}), and a slice's libraries need glibc {want} or newer: "
            "take an image on Debian, Ubuntu, Fedora or the like."
        )
    for path in _LIBRARIES:
        if content := _read(bundle, Path(path)):
            has = _newest(re.findall(rb"stable release version (\d+\.\d+)", content))
            if has != (0, 0) and has < needed:
                return (
                    f"This image has glibc {has[0]}.{has[1]}, and a slice's libraries need {want} or newer: take a newer image, "
                    "or a wheel of gpukernel that was built for older systems."
                )
            return ""
    return ""  # where it lies is not known; the linker will tell
