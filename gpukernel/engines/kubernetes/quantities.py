"""Quantities as Kubernetes writes them: ``655Mi``, ``1.5Gi``, ``2e9`` (reference of the type Quantity)."""

from __future__ import annotations

import re
from decimal import Decimal

__all__ = ["MIB", "bytes_of", "quantity"]

MIB = 2**20
_FORM = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)(?P<unit>[KMGTPE]i|[mkMGTPE]|[eE][+-]?\d{1,2})?")
_BINARY = {f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", 1)}
_DECIMAL = {"m": Decimal("0.001"), **{letter: 1000**power for power, letter in enumerate("kMGTPE", 1)}}


def bytes_of(text: str) -> int:
    """Return the bytes of a quantity, rounded up to whole ones as the API does; `ValueError` where it is none."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"“{text[:40]}” is no quantity; write 655Mi or 2Gi.")
    number, unit = Decimal(match["number"]), match["unit"] or ""
    if unit in _BINARY:
        number *= _BINARY[unit]
    elif unit in _DECIMAL:
        number *= _DECIMAL[unit]
    elif unit:
        number *= Decimal(10) ** int(unit[1:])
    return int(number.to_integral_value(rounding="ROUND_CEILING"))


def quantity(size: int) -> str:
    """Return bytes, a multiple of 1 MiB, as a quantity in the form that the API would give it."""
    for unit in ("Ti", "Gi", "Mi"):
        if size and size % _BINARY[unit] == 0:
            return f"{size // _BINARY[unit]}{unit}"
    return str(size)
