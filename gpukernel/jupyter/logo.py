"""The logo of a slice, a ring filled by the share with the figure inside, drawn as SVG and as PNG."""

from __future__ import annotations

import math
import struct
import zlib

__all__ = ["png", "svg"]

_TRACK = (0xD5, 0xE3, 0xDA)
_FILL = (0x1E, 0x9E, 0x5A)
_INK = (0x14, 0x53, 0x35)
_RADIUS, _WIDTH = 0.40, 0.17  # of the picture's side
_SAMPLES = 4  # a side; 16 samples a pixel

# 5 × 7 figures, one string a row, for the PNG (the SVG has real text).
_GLYPHS = {
    "0": "01110 10001 10001 10001 10001 10001 01110",
    "1": "00100 01100 00100 00100 00100 00100 01110",
    "2": "01110 10001 00001 00110 01000 10000 11111",
    "3": "11110 00001 00001 01110 00001 00001 11110",
    "4": "00010 00110 01010 10010 11111 00010 00010",
    "5": "11111 10000 11110 00001 00001 10001 01110",
    "6": "01110 10000 10000 11110 10001 10001 01110",
    "7": "11111 00001 00010 00100 01000 01000 01000",
    "8": "01110 10001 10001 01110 10001 10001 01110",
    "9": "01110 10001 10001 01111 00001 00001 01110",
    ".": "0 0 0 0 0 0 1",
}


def figure(share: float) -> str:
    """Return the share as it stands in the ring: ``.02``, ``.25``, ``1``."""
    return f"{share:.3f}".rstrip("0").rstrip(".").removeprefix("0")


def svg(share: float) -> str:
    """Return an SVG of 64 × 64 units whose ring is filled by `share` (0 < share ≤ 1), clockwise from the top."""
    radius, width = 64 * _RADIUS, 64 * _WIDTH
    if share >= 1:
        arc = f'<circle cx="32" cy="32" r="{radius:g}" fill="none" stroke="{_hex(_FILL)}" stroke-width="{width:g}"/>'
    else:
        angle = 2 * math.pi * _visible(share)
        x, y = 32 + radius * math.sin(angle), 32 - radius * math.cos(angle)
        arc = (
            f'<path d="M32 {32 - radius:g}A{radius:g} {radius:g} 0 {int(angle > math.pi)} 1 {x:.3f} {y:.3f}" '
            f'fill="none" stroke="{_hex(_FILL)}" stroke-width="{width:g}"/>'
        )
    text = figure(share)
    size = 20 if len(text) <= 3 else 15
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64" width="64" height="64">'
        f"<title>{share:g} of a GPU</title>"
        f'<circle cx="32" cy="32" r="{radius:g}" fill="#ffffff" stroke="{_hex(_TRACK)}" stroke-width="{width:g}"/>'
        f'{arc}<text x="32" y="{32 + size * 0.36:g}" text-anchor="middle" '
        f'font-family="Inter,Helvetica,Arial,sans-serif" font-weight="700" font-size="{size}" '
        f'fill="{_hex(_INK)}">{text}</text></svg>\n'
    )


def png(share: float, side: int) -> bytes:
    """Return the same picture as a PNG of `side` × `side` pixels with transparency."""
    rows = bytearray()
    bitmap = _bitmap(figure(share))
    scale = max(1, int(side * 0.46 / len(bitmap[0])))
    left = (side - scale * len(bitmap[0])) // 2
    top = (side - scale * 7) // 2
    for y in range(side):
        rows.append(0)
        for x in range(side):
            row, column = (y - top) // scale, (x - left) // scale
            if 0 <= row < 7 and 0 <= column < len(bitmap[0]) and bitmap[row][column]:
                rows += bytes((*_INK, 255))
            else:
                rows += _pixel(x, y, side, share)
    header = struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(rows), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def _visible(share: float) -> float:
    """Return the part of the ring to fill: the smallest shares are drawn as a mark that can be seen."""
    return max(share, 0.03)


def _hex(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _bitmap(text: str) -> list[list[bool]]:
    glyphs = [_GLYPHS[character].split() for character in text]
    return [[bit == "1" for bit in "0".join(glyph[row] for glyph in glyphs)] for row in range(7)]


def _pixel(x: int, y: int, side: int, share: float) -> bytes:
    """Return the ring's mean colour over one pixel."""
    total = [0, 0, 0]
    covered = 0
    for sample in range(_SAMPLES**2):
        dx = (x + (sample % _SAMPLES + 0.5) / _SAMPLES) / side - 0.5
        dy = (y + (sample // _SAMPLES + 0.5) / _SAMPLES) / side - 0.5
        distance = math.hypot(dx, dy)
        if distance > _RADIUS + _WIDTH / 2:
            continue
        if distance < _RADIUS - _WIDTH / 2:
            colour = (255, 255, 255)
        else:
            turn = math.atan2(dx, -dy) / (2 * math.pi) % 1
            colour = _FILL if turn < _visible(share) else _TRACK
        covered += 1
        total = [old + new for old, new in zip(total, colour, strict=True)]
    if not covered:
        return bytes(4)
    return bytes((*(value // covered for value in total), 255 * covered // _SAMPLES**2))
