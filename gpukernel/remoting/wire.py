"""The remoting protocol as Python needs it: numbers of custom calls, and the values of their answers.

Numbers and fields come from ``gpukernel/native/codegen/calls.txt``, which the build turns into ``calls.json``; all integers are
little-endian.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpukernel import native

__all__ = ["WireCall", "WireProtocol", "wire_protocol"]

Fields: TypeAlias = tuple[tuple[str, str], ...]
"""Names and types, as ``calls.txt`` has them."""

_NUMBERS = {
    "u8": "B",
    "u32": "I",
    "u64": "Q",
    "i32": "i",
    "f64": "d",
    "handle": "Q",
    "address": "Q",
    "size": "Q",
}


@dataclass(frozen=True)
class WireCall:
    """A custom call: its number, and the names and types of its answer's fields."""

    number: int
    answer: Fields


@dataclass(frozen=True)
class WireProtocol:
    """The protocol of this installation's shim and worker."""

    magic: int
    version: int
    records: Mapping[str, Fields]
    calls: Mapping[str, WireCall]

    def values(self, call: str, body: bytes, at: int = 0) -> dict[str, Any]:
        """Return the values of an answer to `call`, whose fields begin at `at` in `body`; a list of records is one of dictionaries.

        Raises
        ------
        struct.error
            Where the body ends before them.
        """
        return self._read(self.calls[call].answer, body, at)[0]

    def _read(self, fields: Fields, body: bytes, at: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        for name, kind in fields:
            if record := self.records.get(kind.removesuffix("[]")):
                (count,) = struct.unpack_from("<I", body, at)
                at += 4
                elements: list[dict[str, Any]] = []
                for _ in range(count):
                    element, at = self._read(record, body, at)
                    elements.append(element)
                found[name] = elements
            elif kind == "text":
                (length,) = struct.unpack_from("<I", body, at)
                found[name] = struct.unpack_from(f"{length}s", body, at + 4)[0].decode(errors="replace")
                at += 4 + length
            else:
                (found[name],) = struct.unpack_from(f"<{_NUMBERS[kind]}", body, at)
                at += struct.calcsize(f"<{_NUMBERS[kind]}")
        return found, at


@functools.cache
def wire_protocol() -> WireProtocol:
    """Return the protocol of this installation."""
    content = json.loads(native.wire_calls().read_text())

    def fields(listed: list[list[str]]) -> Fields:
        return tuple((name, kind) for name, kind in listed)

    return WireProtocol(
        content["magic"],
        content["version"],
        {name: fields(listed) for name, listed in content["records"].items()},
        {name: WireCall(call["number"], fields(call["answer"])) for name, call in content["calls"].items()},
    )
