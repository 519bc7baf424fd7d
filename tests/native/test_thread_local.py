"""The room that our driver libraries take of what the C library keeps for thread-local variables of libraries that are opened later.

glibc keeps 1,664 bytes in all (``TLS_STATIC_SURPLUS``).  A library that finds too little left is not opened: "cannot allocate memory in
static TLS block".  OpenMP's, allocators and profilers take of it, too.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from gpukernel import native

PT_TLS = 7
MOST = 512  # bytes of one library: programs on a slice have one of them


def thread_local_bytes(library: Path) -> int:
    """Return the size of a library's thread-local variables, by its program header of 64-bit ELF."""
    image = library.read_bytes()
    (start,) = struct.unpack_from("<Q", image, 32)
    size, count = struct.unpack_from("<HH", image, 54)
    headers = (struct.unpack_from("<IIQQQQQQ", image, start + n * size) for n in range(count))
    return sum(header[6] for header in headers if header[0] == PT_TLS)


@pytest.mark.parametrize("library", native.own_drivers(), ids=lambda library: library.parent.name)
def test_a_driver_leaves_room_for_the_variables_of_others(library: Path) -> None:
    assert 0 < thread_local_bytes(library) <= MOST
