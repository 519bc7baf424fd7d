"""A profile as a self-contained piece of HTML: a flame-like picture of where the time went, and the table.

No script and nothing from elsewhere: it stays what it is in a saved notebook.  All texts of programs are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape

from gpukernel.remoting.profile.figures import KernelCount, ProfiledKernels
from gpukernel.remoting.profile.table import (
    HEADS,
    NOTHING,
    RANGE_HEADS,
    WHAT_IT_IS,
    amount,
    cells,
    duration,
    range_cells,
    remarks,
    short_name,
)

__all__ = ["html_page", "html_picture"]

WIDTH, ROW, LEAST = 960.0, 24, 0.8  # pixels; narrower boxes are left out
LETTER = 6.6  # pixels of one, on the average
COLOURS = ("#d9822b", "#c2571a", "#e0a13a", "#b8442c", "#cf6f3c")
CALM = "#7d8794"


@dataclass
class Box:
    """A part of the time, and its own parts; `weight` in any unit that its neighbours share."""

    title: str
    told: str
    weight: float
    colour: str
    parts: list[Box] = field(default_factory=list)
    pale: bool = False


def _kernel(one: KernelCount, colour: str) -> Box:
    counted = sum(line.instructions for line in one.lines)
    lines = [
        Box(
            f"{line.file or 'PTX'}:{line.line}",
            f"{line.file or 'the kernel’s PTX'}, line {line.line}: {amount(line.instructions)} instructions of warps, "
            f"{line.instructions / one.instructions:.0%} of the kernel's",
            one.seconds * line.instructions / max(one.instructions, counted, 1),
            colour,
            pale=True,
        )
        for line in one.lines
    ]
    words = ", ".join(
        f"{head.lower()} {text}" for head, text in zip(HEADS[1:], cells(one)[1:], strict=True) if text != "-"
    )
    return Box(
        f"{short_name(one.name)} · {duration(one.seconds)}",
        f"{one.name}: {words}",
        one.seconds,
        colour,
        lines,
    )


def _tree(kernels: Iterable[KernelCount]) -> Box:
    """Return everything, by the program's ranges, then by kernels, then by lines."""
    every = list(kernels)
    colours = {
        name: COLOURS[n % len(COLOURS)] for n, name in enumerate(dict.fromkeys(one.name for one in every))
    }
    whole = Box("", "", sum(one.seconds for one in every), CALM)
    whole.title = f"all kernels · {duration(whole.weight)}"
    whole.told = (
        f"{len(every)} kernels, {sum(one.launches for one in every)} launches, {duration(whole.weight)}"
    )
    for one in every:
        at = whole
        for name in filter(None, one.range.split("/")):
            inner = next((part for part in at.parts if part.title == name and part.colour == CALM), None)
            if inner is None:
                inner = Box(name, "", 0.0, CALM)
                at.parts.append(inner)
            inner.weight += one.seconds
            inner.told = f"range {name}: {duration(inner.weight)}"
            at = inner
        at.parts.append(_kernel(one, colours[one.name]))
    return whole


def _draw(box: Box, left: float, width: float, depth: int, out: list[str]) -> int:
    """Draw a box with its parts below it, and return how many rows that takes."""
    if width < LEAST:
        return depth
    letters = int((width - 8) / LETTER)
    title = (
        box.title
        if len(box.title) <= letters
        else box.title[: max(letters - 1, 0)] + "…"
        if letters > 3
        else ""
    )
    top = depth * ROW
    out.append(
        f'<g><title>{escape(box.told)}</title><rect x="{left:.1f}" y="{top}" width="{max(width - 1, 0.5):.1f}" height="{ROW - 2}" rx="2" '
        f'fill="{box.colour}" fill-opacity="{0.5 if box.pale else 0.95}"/>'
        + (
            f'<text x="{left + 5:.1f}" y="{top + 15}" fill="{"currentColor" if box.pale else "#fff"}">{escape(title)}</text>'
            if title
            else ""
        )
        + "</g>"
    )
    deepest = depth + 1
    whole = max(box.weight, sum(part.weight for part in box.parts)) or 1.0
    at = left
    for part in sorted(box.parts, key=lambda one: -one.weight):
        wide = width * part.weight / whole
        deepest = max(deepest, _draw(part, at, wide, depth + 1, out))
        at += wide
    return deepest


def _flames(profile: ProfiledKernels) -> str:
    boxes: list[str] = []
    rows = _draw(_tree(profile.kernels), 0.0, WIDTH, 0, boxes)
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {rows * ROW}" role="img" aria-label="Where the time of the kernels went" '
        f'style="width:100%;max-width:{WIDTH:.0f}px;display:block;font:11px sans-serif">{"".join(boxes)}</svg>'
    )


_LEFT = "padding:2px 8px;text-align:left;white-space:nowrap;font-variant-numeric:tabular-nums"
_RIGHT = _LEFT.replace("left", "right", 1)


def _rows(heads: Iterable[str], lines: Iterable[Iterable[tuple[str, str]]], left: int) -> str:
    """Return a table whose cells are texts and what a pointer that rests on them shows; the first `left` columns begin at the left."""

    def side(n: int) -> str:
        return _LEFT if n < left else _RIGHT

    titles = "".join(f'<th style="{side(n)}">{escape(head)}</th>' for n, head in enumerate(heads))
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td style="{side(n)}"{f" title={chr(34)}{escape(told)}{chr(34)}" if told else ""}>{escape(text)}</td>'
            for n, (text, told) in enumerate(line)
        )
        + "</tr>"
        for line in lines
    )
    return (
        '<div style="overflow-x:auto"><table style="border-collapse:collapse;font-size:12px;margin:8px 0">'
        f"<thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _tables(profile: ProfiledKernels) -> str:
    inside = profile.ranges()
    first = ("Range",) if inside else ()

    def line(one: KernelCount) -> list[tuple[str, str]]:
        name, *others = cells(one)
        return [*((one.range, "") for _ in first), (name, one.name), *((text, "") for text in others)]

    kernels = _rows(first + HEADS, map(line, profile.kernels), 2 + len(first))
    if not inside:
        return kernels
    lines = (
        [(text.replace("  ", "\u2003"), "/".join(one.path)) for text in range_cells(one)] for one in inside
    )
    return _rows(RANGE_HEADS, lines, 1) + kernels


def html_picture(profile: ProfiledKernels) -> str:
    """Return the picture, the table and the remarks as a piece of HTML."""
    if not profile.kernels:
        return f"<p>{NOTHING}</p>"
    said = "".join(
        f"<li><b>{escape(short_name(one.name))}</b>: {escape(sentence)}</li>"
        for one in profile.kernels
        for sentence in remarks(one)
    )
    return (
        f'<div style="font-size:12px;line-height:1.5">{_flames(profile)}{_tables(profile)}'
        + (f'<ul style="margin:4px 0;padding-left:20px">{said}</ul>' if said else "")
        + f'<p style="opacity:.65;margin:4px 0">{escape(WHAT_IT_IS)} Below a kernel: its lines, by instructions.</p></div>'
    )


def html_page(profile: ProfiledKernels, title: str) -> str:
    """Return the same as a page of its own."""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<body style="font-family:sans-serif;margin:24px;max-width:1100px"><h1 style="font-size:18px">{escape(title)}</h1>'
        f"{html_picture(profile)}</body></html>\n"
    )
