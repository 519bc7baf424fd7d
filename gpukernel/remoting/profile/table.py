"""A profile as text: a line a kernel, and a remark for each figure that a person could do something about."""

from __future__ import annotations

from collections.abc import Iterator

from gpukernel.remoting.profile.figures import KernelCount, ProfiledKernels, RangeUse

__all__ = [
    "HEADS",
    "NOTHING",
    "RANGE_HEADS",
    "WHAT_IT_IS",
    "amount",
    "cells",
    "duration",
    "range_cells",
    "remarks",
    "short_name",
    "text_table",
]

HEADS = (
    "Kernel", "Block", "Launches", "Time", "Tier", "Instructions", "Lanes", "Divergent", "Global", "Sectors/load",
    "Sectors/store", "Coalescing", "Bank conflicts", "Occupancy",
)  # fmt: skip

RANGE_HEADS = ("Range", "Launches", "Time", "Share")

NOTHING = "No kernel ran on the slice meanwhile."
WHAT_IT_IS = (
    "Counted in the interpreter, so times are longer than without a profile; the tier is the one without. "
    "Instructions are those of warps."
)


def short_name(name: str, most: int = 40) -> str:
    """Return a kernel's name without its parameters and namespaces, at most so many characters long."""
    plain = name.split("(")[0].split("<")[0].rsplit("::", 1)[-1] or name
    return plain if len(plain) <= most else plain[: most - 1] + "…"


def amount(number: float) -> str:
    """Return a count in three digits, such as 1.21 M."""
    for unit in ("", " k", " M", " G"):
        if number < 1000 or unit == " G":
            break
        number /= 1000
    return f"{number:.0f}" if not unit else f"{number:.3g}{unit}" if number < 999.5 else f"{number:.0f}{unit}"


def duration(seconds: float) -> str:
    """Return a time in three digits, such as 4.1 ms."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def data_size(count: int) -> str:
    """Return a size, such as 3.2 MiB."""
    number = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            break
        number /= 1024
    return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"


def _block(one: KernelCount) -> str:
    sides = list(one.block)
    while len(sides) > 1 and sides[-1] == 1:
        sides.pop()
    return "×".join(map(str, sides))


def cells(one: KernelCount) -> tuple[str, ...]:
    """Return the texts of a kernel's line, in the order of `HEADS`; “-” for what it does not do."""

    def where(there: int, text: str) -> str:
        return text if there else "-"

    return (
        short_name(one.name),
        _block(one),
        f"{one.launches}" + (f" ({one.failed} failed)" if one.failed else ""),
        duration(one.seconds),
        "compiled" if one.compiled else "interpreter",
        amount(one.instructions),
        f"{one.lane_share:.0%}",
        where(one.branches, f"{one.divergent_share:.0%}"),
        where(one.load_requests + one.store_requests, data_size(one.global_bytes)),
        where(one.load_requests, f"{one.sectors_per_load:.1f}"),
        where(one.store_requests, f"{one.sectors_per_store:.1f}"),
        where(one.load_requests + one.store_requests, f"{one.coalescing:.0%}"),
        where(one.shared_requests, f"{amount(one.bank_conflicts)} ({one.bank_ways:.3g}-way)"),
        f"{one.occupancy:.0%}",
    )


def range_cells(one: RangeUse) -> tuple[str, ...]:
    """Return the texts of a range's line, in the order of `RANGE_HEADS`; inner ranges are indented."""
    name = "  " * (len(one.path) - 1) + one.path[-1]
    return (name, f"{one.launches}", duration(one.seconds), f"{one.share:.0%}")


def remarks(one: KernelCount) -> Iterator[str]:
    """Give a sentence for each figure of a kernel that is far from what it could be, the costliest first."""
    if one.coalescing and one.coalescing < 0.5:
        yield (
            f"Only {one.coalescing:.0%} of the bytes in the sectors that it touches are asked for: let neighbouring threads use "
            "neighbouring words of global memory."
        )
    if one.bank_ways >= 1.5:
        yield (
            f"Shared memory takes {one.bank_ways:.3g} passes for one: threads of a warp use different words of one bank; pad the rows "
            "of the tile by one word."
        )
    if one.instructions and one.lane_share < 0.7:
        why = f"; {one.divergent_share:.0%} of its branches part a warp" if one.divergent else ""
        yield f"Only {one.lane_share * 32:.1f} of 32 lanes execute an instruction on the average{why}."
    if one.atomic_requests and one.atomic_turns >= 4 * one.atomic_requests:
        yield (
            f"Threads of a warp take {one.atomic_turns / one.atomic_requests:.1f} turns at an atomic on the average, since they share "
            "addresses: add up in the warp or the block first."
        )
    if one.local_requests:
        yield f"It keeps {data_size(one.local_bytes)} of accesses in local memory: arrays with variable indices, or too many registers."
    if one.occupancy < 0.5:
        yield (
            f"{one.resident_blocks} such blocks fit a multiprocessor, {one.occupancy:.0%} of its warps, by {one.limit} "
            f"({one.registers} registers a thread, estimated, and {data_size(one.shared_memory_bytes)} of shared memory a block)."
        )
    if one.other_memory:
        yield f"{amount(one.other_memory)} instructions access memory in ways that are not counted: textures, matrices, bulk copies."


def _aligned(rows: list[tuple[str, ...]], left: tuple[int, ...]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text.ljust(width) if n in left else text.rjust(width)
            for n, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def text_table(profile: ProfiledKernels) -> str:
    """Return the table, the remarks, and how it was counted, as lines of text."""
    if not profile.kernels:
        return NOTHING
    lines = _aligned([HEADS, *map(cells, profile.kernels)], left=(0, 1, 4))
    for number in range(len(profile.kernels), 0, -1):
        place = profile.kernels[number - 1].range
        if place != (profile.kernels[number - 2].range if number > 1 else ""):
            lines.insert(number, f"[{place}]" if place else "[outside of ranges]")
    if ranges := profile.ranges():
        lines += ["", *_aligned([RANGE_HEADS, *map(range_cells, ranges)], left=(0,)), ""]
    for one in profile.kernels:
        for sentence in remarks(one):
            lines.append(f"{short_name(one.name)}: {sentence}")
    if profile.others:
        lines.append(f"{profile.others} launches of more kernels than the table has room for are not in it.")
    return "\n".join([*lines, WHAT_IT_IS])
