"""``%gpu`` and ``%%gpu``: the slice of this kernel in its notebook, and the pool's notices under the latest cell."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import shlex
import sys
import threading
import time
from typing import Any, NoReturn

from gpukernel.jupyter import notebook
from gpukernel.jupyter.kernel_status import KernelStatus
from gpukernel.jupyter.notebook import SliceError
from gpukernel.jupyter.trouble.cells import CellWatch

__all__ = ["load", "unload"]

USAGE = """\
%gpu                    this kernel's slice: memory, GPU time, time left
%gpu resize 0.05        another size while it is in use (700m: 700 MiB)
%gpu release            give the slice back; the kernel stays
%gpu acquire [0.02]     have a slice again, of this size (0.02 A100: and model)
%gpu watch [SECONDS]    a small live plot; %gpu watch stop
%gpu memcheck [strict]  on simulated GPUs: every access past an array is an
                        error; %gpu memcheck hardware: as on real ones
%%gpu                   run the cell, then say what it did: GPU time, peak
                        memory, bytes moved, launches
%%gpu profile [NAME]    on simulated GPUs: run the cell, then show what each of
                        its kernels did; NAME keeps the figures"""

WORDS = ("show", "resize", "release", "acquire", "watch", "memcheck", "help")


class _Words(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SliceError(f"{message[:1].upper()}{message[1:]}.\n{USAGE}")


def _size(word: str) -> dict[str, Any]:
    """Return the size that ``0.05`` or ``700m`` names."""
    try:
        if word.lower().endswith(("m", "mib")):
            return {"memory_mib": int(word.lower().removesuffix("ib").removesuffix("m"))}
        return {"share": float(word)}
    except ValueError:
        raise SliceError(f"“{word}” is no size; write a share like 0.05, or MiB like 700m.") from None


def gpu(line: str, cell: str | None = None) -> KernelStatus | None:
    """Show or change this kernel's slice; ``%gpu help`` says more."""
    try:
        if cell is not None:
            _run_cell(shlex.split(line), cell)
            return None
        parser = _Words(prog="%gpu", add_help=False)
        parser.add_argument("what", nargs="?", default="show")
        parser.add_argument("size", nargs="?", default="")
        parser.add_argument("model", nargs="?", default="")
        asked = parser.parse_args(shlex.split(line))
        if asked.what not in WORDS:
            close = difflib.get_close_matches(asked.what, WORDS, n=1)
            meant = f"; did you mean “%gpu {close[0]}”?" if close else "."
            raise SliceError(f"%gpu has no word “{asked.what[:40]}”{meant}\n{USAGE}")
        if asked.what == "help":
            print(USAGE)
            return None
        if asked.what == "watch":
            _watch(asked.size)
            return None
        if asked.what == "memcheck":
            print(_memory_check(asked.size))
            return None
        if asked.what == "resize":
            return notebook.resize(**(_size(asked.size) if asked.size else {}))
        if asked.what == "release":
            return notebook.release()
        if asked.what == "acquire":
            return notebook.acquire(**(_size(asked.size) if asked.size else {}), model=asked.model)
        return notebook.status()
    except SliceError as error:
        print(error, file=sys.stderr)
        return None


def _memory_check(word: str) -> str:
    if word and word not in notebook.MEMORY_CHECKS:
        raise SliceError(
            f"“{word}” is no memory check; write %gpu memcheck strict, or %gpu memcheck hardware."
        )
    if notebook.memory_check(word) == "strict":
        return "Memory check: strict. Every access of a kernel past an allocation's last byte is an error."
    return (
        "Memory check: hardware. An access that ends shortly past an allocation warns once and goes on, as on a GPU; "
        "%gpu memcheck strict makes it an error."
    )


def _run_cell(words: list[str], cell: str) -> None:
    from IPython.core.getipython import get_ipython
    from IPython.display import display

    shell: Any = get_ipython()
    if not words:
        with notebook.measure() as figures:
            result = shell.run_cell(cell, store_history=False)
        print(figures)
    elif words[0] == "profile" and (len(words) == 1 or (len(words) == 2 and words[1].isidentifier())):
        with notebook.profile() as counted:
            result = shell.run_cell(cell, store_history=False)
        show: Any = display
        show(counted)
        if len(words) == 2:
            shell.user_ns[words[1]] = counted
    else:
        raise SliceError(
            f"“%%gpu {shlex.join(words)}” is not understood; write %%gpu, or %%gpu profile [NAME]."
        )
    if not result.success:
        from IPython.core.error import UsageError

        # The cell has shown its own error; whoever runs the notebook must learn that it failed.
        raise UsageError("the cell above failed")


# --- watching --------------------------------------------------------------------------------------------------

_POINTS, _EVERY = 120, 0.5
_watching: threading.Event | None = None


def _watch(word: str) -> None:
    global _watching
    if _watching is not None:
        _watching.set()
        _watching = None
    if word == "stop":
        return
    try:
        seconds = float(word or 600)
    except ValueError:
        raise SliceError(f"“{word}” is no number of seconds.") from None
    notebook.status()  # says at once where there is nothing to watch
    from IPython import display as displays

    display: Any = displays.display
    picture = display(_Plot([]), display_id=True)
    stop = _watching = threading.Event()
    threading.Thread(target=_draw, args=(picture, seconds, stop), name="%gpu watch", daemon=True).start()


def _draw(picture: Any, seconds: float, stop: threading.Event) -> None:
    points: list[tuple[float, float]] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stop.wait(_EVERY):
        try:
            now = notebook.use()
        except SliceError:
            now = ()
        limit = sum(one.limit_bytes for one in now)
        points.append(
            (
                sum(one.used_bytes for one in now) / limit if limit else 0.0,
                max((one.gpu_share for one in now), default=0.0),
            )
        )
        del points[:-_POINTS]
        picture.update(_Plot(points, limit))


class _Plot:
    """Memory and compute of the last minute, as SVG."""

    def __init__(self, points: list[tuple[float, float]], limit: int = 0) -> None:
        self._points = list(points)
        self._limit = limit

    def __repr__(self) -> str:
        memory, busy = self._points[-1] if self._points else (0.0, 0.0)
        return f"memory {memory:.0%} of {self._limit // notebook.MIB:,} MiB, {busy:.0%} busy"

    def _repr_html_(self) -> str:
        width, height = 360, 60

        def curve(which: int) -> str:
            first = _POINTS - len(self._points)
            return " ".join(
                f"{(first + i) * width / (_POINTS - 1):.1f},{height - 2 - point[which] * (height - 4):.1f}"
                for i, point in enumerate(self._points)
            )

        memory, busy = self._points[-1] if self._points else (0.0, 0.0)
        limit = f" of {self._limit // notebook.MIB:,} MiB" if self._limit else ""
        return (
            f'<div style="font-size:12px;line-height:1.6"><svg width="{width}" height="{height}" '
            'style="background:rgba(128,128,128,.12);border-radius:4px;display:block">'
            f'<polyline points="{curve(0)}" fill="none" stroke="#1e9e5a" stroke-width="2"/>'
            f'<polyline points="{curve(1)}" fill="none" stroke="#d9822b" stroke-width="1.5"/></svg>'
            f'<span style="color:#1e9e5a">■</span> memory {memory:.0%}{limit} &nbsp; '
            f'<span style="color:#d9822b">■</span> compute {busy:.0%} &nbsp; '
            '<span style="opacity:.6">the last minute</span></div>'
        )


# --- notices ---------------------------------------------------------------------------------------------------


class _Notices:
    """A thread that prints, under the cell that ran last, what the pool wants this kernel's person to know."""

    def __init__(self) -> None:
        self._closed = False
        threading.Thread(target=self._listen, name="gpukernel notices", daemon=True).start()

    def close(self) -> None:
        self._closed = True

    def _listen(self) -> None:
        quietly = contextlib.suppress(SliceError, OSError, ValueError)
        with quietly, notebook.kernel_socket("watch", seconds=None) as answers:
            before, told = "", ""
            for line in answers:
                kind, _, rest = line.partition(" ")
                if kind != "ok" or self._closed:
                    return
                status = KernelStatus.from_json(json.loads(rest))
                words = status.notice
                if status.state == "ended" and before == "live":
                    words = f"The slice of this kernel is gone: {status.sentence}"
                before = status.state
                if words and words != told:
                    print(f"gpukernel: {words}", file=sys.stderr, flush=True)
                told = words


_notices: _Notices | None = None
_cells: CellWatch | None = None


def load(shell: Any) -> None:
    """Give `shell` the magics, and its notebook the notices and the next steps."""
    global _notices, _cells
    shell.register_magic_function(gpu, "line_cell", "gpu")
    if _notices is None:
        _notices = _Notices()
    if _cells is None:
        _cells = CellWatch(shell)


def unload(shell: Any) -> None:
    """Take all of that away again."""
    global _notices, _cells
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("gpu", None)
    if _notices is not None:
        _notices.close()
        _notices = None
    if _cells is not None:
        _cells.close()
        _cells = None
