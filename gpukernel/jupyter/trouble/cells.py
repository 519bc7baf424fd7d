"""The watch over cells in the kernel: tells what became of each one on the GPU, under the cell and to whoever keeps the slice.

Guarantees
----------
* A cell that succeeds costs a comparison of three counters; nobody is asked.
* A kernel that has not loaded CUDA tells nothing, whatever its cells raise.
* Numba looks for a GPU again after a cell in which there was none; it would keep for good that there is none.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from typing import Any

from gpukernel.jupyter import notebook
from gpukernel.jupyter.notebook import SliceError
from gpukernel.jupyter.trouble.next_step import Trouble

__all__ = ["CellWatch", "let_numba_look_again", "trouble_of"]

_LOST = frozenset({214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719})
"""Results after which a context does nothing more: ECC, illegal address, timeout, destroyed, assertion, stack, instruction, alignment …"""

_SAYS_LOST = (
    "illegal memory access",
    "illegal_address",
    "misaligned address",
    "misaligned_address",
    "illegal instruction",
    "illegal_instruction",
    "unspecified launch failure",
    "launch_failed",
    "launch_timeout",
    "device-side assert",
    "error_assert",
    "hardware_stack_error",
    "invalid_pc",
)
_SAYS_FULL = (
    "out of memory",
    "out_of_memory",
    "resource_exhausted",
    "resourceexhausted",
    "oom when allocating",
    "alloc_failed",
)


def _words(error: BaseException | None) -> str:
    """Return the names and texts of an exception and of those that it came from, in small letters."""
    found, deep = [], 0
    while error is not None and deep < 10:
        with contextlib.suppress(Exception):  # a text of somebody else's making
            found.append(f"{type(error).__name__}: {error}"[:20_000])
        error, deep = error.__cause__ or error.__context__, deep + 1
    return "\n".join(found).lower()


def _context_lost() -> bool:
    """Return whether the driver says that this thread's context is lost; it is asked about a stream, which waits for nothing."""
    driver = _driver()
    return driver is not None and driver.cuStreamQuery(None) in _LOST


def _driver() -> ctypes.CDLL | None:
    """Return the CUDA driver library that this process has loaded, in whichever mode."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for line in maps:
            if "/libcuda.so" in line:
                return ctypes.CDLL(line.split(maxsplit=5)[5].strip())
    return None


def trouble_of(error: BaseException) -> Trouble:
    """Return what an exception says about the GPU: that the context is lost, that the slice is full, or nothing."""
    words = _words(error)
    if any(says in words for says in _SAYS_LOST):
        return "fault"
    return "memory" if any(says in words for says in _SAYS_FULL) else ""


def let_numba_look_again() -> None:
    """Have Numba initialise CUDA anew where it could not: when a cell left the queue, or its request was refused."""
    driver: Any = getattr(sys.modules.get("numba.cuda.cudadrv.driver"), "driver", None)
    if getattr(driver, "initialization_error", None) and _driver() is not None:
        driver.is_initialized, driver.initialization_error = False, None


class CellWatch:
    """The callbacks of one IPython shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._told: Trouble = ""
        self._counted = (0, 0, 0)
        shell.events.register("pre_run_cell", self.before)
        shell.events.register("post_run_cell", self.after)

    def close(self) -> None:
        """Watch no longer."""
        self._shell.events.unregister("pre_run_cell", self.before)
        self._shell.events.unregister("post_run_cell", self.after)

    def before(self, info: object) -> None:
        """Prepare for a cell."""
        let_numba_look_again()
        if self._told == "memory":
            self._counted = notebook.counted()

    def after(self, result: Any) -> None:
        """Look at the exception of a cell, and say the next step."""
        error = result.error_in_exec
        if error is None:
            # The trouble is over when the GPU has done something without one.
            if self._told == "memory" and notebook.counted() > self._counted:
                self._tell("")
        elif (
            _driver() is not None and notebook.holds_slice()
        ):  # without one, asking the driver would queue again
            self._tell("fault" if _context_lost() else trouble_of(error), say=True)

    def _tell(self, trouble: Trouble, *, say: bool = False) -> None:
        if not trouble and not self._told:
            return
        with contextlib.suppress(SliceError):
            status = notebook.report(trouble)
            self._told = status.trouble
            if say and trouble and status.next_step:
                print(f"gpukernel: {status.next_step}", file=sys.stderr, flush=True)
