"""The names of the calls that a program waits for, read from the bytes that its worker sends (``wire/protocol.h``)."""

from __future__ import annotations

import collections
import functools
import importlib
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Answers", "call_table"]

CODEGEN = Path(__file__).parents[2] / "gpukernel/native/codegen"
HANDSHAKE = 40 + 40  # bytes of the worker's challenge and welcome
PROOF = 72  # bytes of the program's part
HEAD = struct.Struct("<IHH")  # length of the body, call, number


@functools.cache
def call_table() -> Any:
    """Return the table of the calls of the data path (``gpukernel/native/codegen/calls.py``)."""
    sys.path.insert(0, str(CODEGEN))
    try:
        return importlib.import_module("calls").read_table()
    finally:
        sys.path.remove(str(CODEGEN))


class Answers:
    """The frames that workers have sent on plain sockets: each is an answer that a program has waited for, or asked for ahead.

    With ``handshake=PROOF`` those that programs have sent.
    """

    def __init__(self, handshake: int = HANDSHAKE) -> None:
        self._handshake = handshake
        self._numbers: collections.Counter[int] = collections.Counter()
        self._lock = threading.Lock()

    def reader(self) -> Callable[[bytes], None]:
        """Return what takes the bytes of one connection, in order and in pieces of any length."""
        skip, kept = self._handshake, bytearray()

        def take(data: bytes) -> None:
            nonlocal skip
            kept.extend(data)
            while skip + HEAD.size <= len(kept):
                length, call, _number = HEAD.unpack_from(kept, skip)
                with self._lock:
                    self._numbers[call] += 1
                skip += HEAD.size + length
            gone = min(skip, len(kept))
            del kept[:gone]
            skip -= gone

        return take

    def of(self, name: str) -> int:
        """Return how many frames of the call `name` there were since `taken`."""
        with self._lock:
            return self._numbers[call_table().number_of(name)]

    def taken(self) -> dict[str, int]:
        """Return how many answers each call has had since this was last asked, the most frequent first."""
        with self._lock:
            numbers, self._numbers = self._numbers, collections.Counter()
        table = call_table()
        names = {call.number: call.name for call in (*table.custom, *table.driver)}
        return {names.get(number, f"call {number}"): count for number, count in numbers.most_common()}
