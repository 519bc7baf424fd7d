"""The variables of a program on a slice, and the filter of Slurm's commands (``cli_filter.lua``) that gives them to shard jobs.

A step changes a variable that a job has already: ``set``; ``default``, where it is empty; ``first`` and ``last``, at the beginning or the
end of a list with ``:``; ``add``, at its end where it is not there yet; ``flags``, at the end of words, unless the first one's name is among
them; ``unset``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpukernel.remoting.environment import compiler_environment, shim_environment, with_commands
from gpukernel.remoting.lease_file import LEASE_FILE_VARIABLE, OF_SLURM

__all__ = ["Step", "cli_filter", "recipe"]

_LISTS = ("PATH", "LD_LIBRARY_PATH", "LD_AUDIT")
_FLAGS = ("XLA_FLAGS",)
_MARK = "@"
OF_SLURM_GPUS = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES")
"""Variables that name GPUs by their numbers on the node; a slice is device 0."""


@dataclass(frozen=True)
class Step:
    """One change of a variable."""

    how: str
    name: str
    value: str = ""


def _made_of(base: dict[str, str], *, simulated: bool) -> dict[str, str]:
    own = compiler_environment(with_commands(base), simulated=simulated, part=True)
    return shim_environment(Path("/"), own)


def recipe(*, simulated: bool) -> list[Step]:
    """Return the steps that change any environment as `gpukernel.remoting.environment.lease_environment` does, but for the lease file."""
    marked = dict.fromkeys((*_LISTS, *_FLAGS), _MARK)
    made = _made_of(marked, simulated=simulated)
    given = _made_of(dict.fromkeys(made, _MARK), simulated=simulated)
    steps = [Step("unset", name) for name in OF_SLURM_GPUS]
    for name, value in sorted(made.items()):
        if name == LEASE_FILE_VARIABLE or value == _MARK:
            continue
        if name in _LISTS:
            before, _, after = value.partition(_MARK)
            steps += [Step("first", name, before.strip(":"))] if before else []
            # A folder of commands that is in PATH already, as of an activated environment, keeps its place.
            how = "add" if name == "PATH" else "last"
            steps += [Step(how, name, after.strip(":"))] if after else []
        elif name in _FLAGS:
            steps.append(Step("flags", name, value.removeprefix(_MARK).strip()))
        else:
            steps.append(Step("default" if given[name] == _MARK else "set", name, value))
    return steps


def cli_filter(folder: Path, *, simulated: bool) -> str:
    """Return Slurm's ``cli_filter.lua`` for jobs whose lease files are below `folder`."""
    steps = "".join(
        f"  {{{_quoted(one.how)}, {_quoted(one.name)}, {_quoted(one.value)}}},\n"
        for one in recipe(simulated=simulated)
    )
    text = Path(__file__).with_name("cli_filter.lua").read_text("utf-8")
    lease = f"local LEASE = {_quoted(f'{OF_SLURM}{folder}')}\n"
    return text.replace("local LEASE, STEPS = nil, {}\n", f"{lease}local STEPS = {{\n{steps}}}\n")


def _quoted(text: str) -> str:
    """Return a string of Lua."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
