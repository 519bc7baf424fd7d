"""The next step after a fault, out of memory, or the end of a slice that was in use, as one sentence.

The same sentence stands under the cell and in ``%gpu``; the front end has it in its own language.  Kernels load this, so it needs
nothing but the standard library.
"""

from __future__ import annotations

from typing import Literal, Protocol

__all__ = ["Trouble", "next_step"]

Trouble = Literal["", "fault", "memory"]
"""``fault``: the kernel's context is lost; ``memory``: a cell failed because the slice had too little memory."""

MIB = 2**20


class Troubled(Protocol):
    """The part of a kernel's status (`gpukernel.jupyter.kernel_status.KernelStatus`) that decides what to do."""

    @property
    def state(self) -> str:
        """Return ``none``, ``waiting``, ``live`` or ``ended``."""

    @property
    def what(self) -> str:
        """Return the size in words."""

    @property
    def trouble(self) -> Trouble:
        """Return what became of the latest work on the GPU."""

    @property
    def needs_restart(self) -> bool:
        """Return whether the process cannot use another slice."""

    @property
    def memory_bytes(self) -> int:
        """Return the slice's memory."""

    @property
    def device_memory_bytes(self) -> int:
        """Return the memory of the whole device."""

    @property
    def larger_share(self) -> float:
        """Return the next larger size that quotas allow; 0 for none."""


def next_step(status: Troubled) -> str:
    """Return what to do about the trouble of `status`; empty where there is none."""
    if status.trouble == "fault":
        return "A fault has ended this kernel's work on the GPU: restart the kernel. Its slice is kept; what was on the GPU is lost."
    if status.needs_restart and status.state == "live":
        return "Restart the kernel: its libraries still hold what they had on the slice that is gone."
    if status.needs_restart:
        return f"Restart the kernel to use {status.what} again: this one has used CUDA before, and its libraries keep what was then."
    if status.trouble == "memory":
        has = f"Out of memory: this slice has {status.memory_bytes // MIB:,} MiB."
        if status.larger_share:
            return f"{has} “%gpu resize {status.larger_share:g}” makes it larger."
        why = (
            "It is the whole GPU"
            if status.memory_bytes >= status.device_memory_bytes
            else "Your quotas allow no larger one"
        )
        return f"{has} {why}: use less, for example smaller batches."
    return ""
