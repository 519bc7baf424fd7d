"""The variables of a program on a slice, as steps that the task prolog carries out on those that a task has already.

A step is a line ``HOW NAME VALUE``: ``set``; ``default``, where it is empty; ``first`` and ``last``, at the beginning or the end of a list
with ``:``; ``flags``, at the end of words, unless the first one's name is among them; ``unset``.
"""

from __future__ import annotations

from pathlib import Path

from gpukernel.remoting.environment import compiler_environment, shim_environment, with_commands
from gpukernel.remoting.lease_file import LEASE_FILE_VARIABLE

__all__ = ["recipe"]

_LISTS = ("PATH", "LD_LIBRARY_PATH", "LD_AUDIT")
_FLAGS = ("XLA_FLAGS",)
_MARK = "@"
OF_SLURM = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES")
"""Variables by which Slurm tells a program the number of its GPU on the node; a slice is device 0."""


def _made_of(base: dict[str, str], *, simulated: bool) -> dict[str, str]:
    own = compiler_environment(with_commands(base), simulated=simulated, part=True)
    return shim_environment(Path("/"), own)


def recipe(*, simulated: bool) -> str:
    """Return the steps that change any environment as `gpukernel.remoting.environment.lease_environment` does, but for the lease file."""
    marked = dict.fromkeys((*_LISTS, *_FLAGS), _MARK)
    made = _made_of(marked, simulated=simulated)
    given = _made_of(dict.fromkeys(made, _MARK), simulated=simulated)
    lines = [f"unset {name}" for name in OF_SLURM]
    for name, value in sorted(made.items()):
        if name == LEASE_FILE_VARIABLE or value == _MARK:
            continue
        if name in _LISTS:
            before, _, after = value.partition(_MARK)
            lines += [f"first {name} {before.strip(':')}"] if before else []
            lines += [f"last {name} {after.strip(':')}"] if after else []
        elif name in _FLAGS:
            lines.append(f"flags {name} {value.removeprefix(_MARK).strip()}")
        else:
            lines.append(f"{'default' if given[name] == _MARK else 'set'} {name} {value}")
    return "\n".join(lines) + "\n"
