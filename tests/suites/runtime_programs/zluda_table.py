"""ZLUDA's table of small PTX programs: each has its input and the output that a GPU must give.

The table is Rust: calls of three macros with a name and lists of literals.  What is no literal of a known kind is an error, and so is
a comparison with a list whose kind nothing says.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path

TABLE = "ptx/src/test/spirv_run/mod.rs"
FORMATS = {
    **{f"u{bits}": letter for bits, letter in zip((8, 16, 32, 64), "BHIQ", strict=True)},
    **{f"i{bits}": letter for bits, letter in zip((8, 16, 32, 64), "bhiq", strict=True)},
    "f16": "e",
    "f32": "f",
    "f64": "d",
}
_CALL = re.compile(r"^test_ptx(|_warp|_with_32)!\((.*?)\);$", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(
    r"(-?)(0x[0-9a-fA-F_]+?|0b[01_]+|[0-9][0-9_]*(?:\.[0-9]+)?(?:e-?[0-9]+)?)(?:_?([uif](?:8|16|32|64)))?"
)
_LIMITS = {"max_value()": "MAX", "min_value()": "MIN"}
_PI = r"std::f32::consts::PI( / 2f32)?"


@dataclass(frozen=True)
class Numbers:
    """Numbers of one of Rust's kinds, as they lie in memory."""

    kind: str
    data: bytes

    def values(self, data: bytes) -> list[float]:
        """Read `data` as numbers of this kind."""
        return [value for (value,) in struct.iter_unpack(f"<{FORMATS[self.kind]}", data)]


@dataclass(frozen=True)
class Program:
    """A program of the table: its kernel is called as it is; `threads` of one block run it."""

    name: str
    input: Numbers | None
    output: Numbers
    threads: int


def _literal(text: str) -> tuple[str, object]:
    """Return a literal's kind, empty where it has none of its own, and its value: a number, or the bits of a float."""
    text = text.removesuffix(".to_bits()") if (of_bits := text.endswith(".to_bits()")) else text
    kind, value = _number(text)
    if of_bits:
        return f"u{struct.calcsize(FORMATS[kind]) * 8}", value
    return kind, value


def _number(text: str) -> tuple[str, object]:
    if match := re.fullmatch(_PI, text):
        return "f32", math.pi / (2 if match[1] else 1)
    if match := re.fullmatch(r"(?:half::)?([uif]\d+)::(\w+(?:\(\))?)", text):
        kind, name = match[1], _LIMITS.get(match[2], match[2])
        if kind[0] == "f":
            bits = {"f16": (0x7E00, 0x7C00), "f32": (0x7FC00000, 0x7F800000)}[kind]
            sign = 1 << (int(kind[1:]) - 1)
            return kind, ("bits", {"NAN": bits[0], "INFINITY": bits[1], "NEG_INFINITY": bits[1] | sign}[name])
        width = int(kind[1:])
        least, most = (0, 2**width - 1) if kind[0] == "u" else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
        return kind, {"MIN": least, "MAX": most}[name]
    if match := re.fullmatch(r"(?:half::)?(f\d+)::from_(bits|f32|f64)\((.*)\)", text):
        _, value = _number(match[3])
        return match[1], ("bits", value) if match[2] == "bits" else value
    if match := _NUMBER.fullmatch(text):
        sign, digits, kind = match[1], match[2].replace("_", ""), match[3] or ""
        whole = not re.search(r"[.e]", digits) or digits.startswith("0x")
        value = int(digits, 0) if whole else float(digits)
        return kind or ("" if whole else "float"), -value if sign else value
    raise ValueError(f"{text[:60]!r} is no number")


def numbers(text: str) -> Numbers:
    """Read a list of literals; those without a kind have that of the others, and alone Rust's own."""
    inside = text.strip().removeprefix("[").removesuffix("]")
    parts = [_literal(part.strip()) for part in re.split(r",(?![^(]*\))", inside) if part.strip()]
    kinds = {kind for kind, _ in parts if kind not in ("", "float")}
    if len(kinds) > 1:
        raise ValueError(f"numbers of several kinds: {sorted(kinds)}")
    own = "f64" if any(kind == "float" for kind, _ in parts) else "i32"
    kind = kinds.pop() if kinds else own
    data = b""
    for _, value in parts:
        if isinstance(value, tuple):
            data += int(value[1]).to_bytes(int(kind[1:]) // 8, "little")
        else:
            data += struct.pack(f"<{FORMATS[kind]}", float(value) if kind[0] == "f" else value)  # type: ignore[arg-type]
    return Numbers(kind, data)


def _arguments(text: str) -> list[str]:
    """Split a macro's arguments at the commas that are in no bracket."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [each.strip() for each in found if each.strip()]


def programs(repository: Path) -> list[Program]:
    """Return the programs of the table that have an output; the others are for ZLUDA's compiler alone."""
    text = re.sub(r"//.*", "", (repository / TABLE).read_text())
    found = []
    for macro, words in _CALL.findall(text):
        name, *lists = _arguments(words)
        if not lists:
            continue
        *before, output = map(numbers, lists)
        found.append(Program(name, before[0] if before else None, output, 64 if macro == "_warp" else 1))
    return found
