"""Plots of a simulated day, as SVG that is read on light and on dark pages."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

from benchmarks.scale.figures import PoolRecord, served, waits_by_course
from benchmarks.scale.teaching_day import VARIANTS

__all__ = ["plot_all"]

# Both read well on white and on the site's dark slate; told apart by colour-blind people, and by their lines.
_INK = "#808691"
_COLOURS = {"pool": "#1b9e9e", "fifo": "#d98014", "whole": "#a76bd1"}
_LINES = {"pool": "-", "fifo": "--", "whole": ":"}


@contextmanager
def _figure(path: Path, title: str, height: float = 3.4) -> Iterator[Any]:
    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": "gpukernel",
        "font.family": "sans-serif",
        "font.size": 9,
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK
        ),
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(style):
        figure, axes = pyplot.subplots(figsize=(8, height))
        axes.set_title(title, loc="left", fontsize=10)
        axes.grid(alpha=0.25, color=_INK, linewidth=0.5)
        yield axes
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3)
        figure.tight_layout()
        figure.savefig(path, transparent=True, metadata={"Date": None})
        pyplot.close(figure)
        # Lines end without blanks, as everywhere in this repository.
        path.write_text("".join(f"{line.rstrip()}\n" for line in path.read_text().splitlines()))


def plot_all(records: dict[str, list[PoolRecord]], folder: Path) -> None:
    """Draw the plots of `docs/scale.md` into a folder."""
    for name, title in (
        ("promised", "Devices promised to leases"),
        ("useful", "Devices in use by students who are there"),
    ):
        with _figure(folder / f"scale-{name}.svg", f"{title}, % of those that work") as axes:
            _by_hour(axes, records, name)
            axes.set_ylim(0, 102)
    with _figure(folder / "scale-waiting.svg", "Requests that wait") as axes:
        _by_hour(axes, records, "waiting")
        axes.set_ylim(bottom=0)
    with _figure(
        folder / "scale-waits.svg", "Median wait of a course, minutes; courses by their wait"
    ) as axes:
        for variant, days in records.items():
            waits = sorted(
                statistics.median(one) / 60 for day in days for one in waits_by_course(day).values()
            )
            _line(axes, variant, [100 * i / len(waits) for i in range(len(waits))], waits)
        axes.set_xlabel("% of courses")
    with _figure(
        folder / "scale-served.svg", "Part of their time that a course's students had a slice, %"
    ) as axes:
        for variant, days in records.items():
            parts = sorted(100 * part for day in days for part in served(day).values())
            _line(axes, variant, [100 * i / len(parts) for i in range(len(parts))], parts)
        axes.set_xlabel("% of courses, the worst first")
        axes.set_ylim(0, 102)


def _by_hour(axes: Any, records: dict[str, list[PoolRecord]], name: str) -> None:
    for variant, days in records.items():
        moments = list(zip(*(day.record.samples for day in days), strict=False))
        hours = [some[0].at / 3600 for some in moments]
        if name == "waiting":
            values = [float(sum(one.waiting for one in some)) for some in moments]
        else:
            values = [
                100 * sum(getattr(one, name) for one in some) / max(sum(one.devices for one in some), 1)
                for some in moments
            ]
        _line(axes, variant, hours, values)
    axes.set_xlabel("time of the day, hours")
    axes.set_xticks(range(8, 25, 2))


def _line(axes: Any, variant: str, across: list[float], up: list[float]) -> None:
    axes.plot(
        across,
        up,
        _LINES[variant],
        color=_COLOURS[variant],
        label=VARIANTS[variant].replace("the pool's ", ""),
    )
