"""``gpukernel cdi``: slices for containers, by a file that podman, Docker and containerd read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from gpukernel.cli.options import Pool, State
from gpukernel.cli.tables import ask_pool
from gpukernel.cli.terminal.output import FAILED, NOT_THERE, USAGE, Problem, complain
from gpukernel.common.address import container_sockets, resolve_address
from gpukernel.jupyter.kernelspecs import STANDARD
from gpukernel.jupyter.offers import short_model

__all__ = ["cdi"]

SIMULATED = "(simulated)"


def cdi(
    share: Annotated[
        list[float] | None,
        typer.Option(
            metavar="SHARE",
            help="Part of a device, 0.001 to 1; may be repeated. Without it: 0.02, 0.05, 0.1, 0.25, 1.",
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="Model, part of its name; may be repeated. Without it: every model of the pool.",
        ),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; “-”: standard output.")
    ] = "/etc/cdi/gpukernel.json",
    sockets: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Folder “containers” of an agent's state directory on this machine; may be repeated. "
            "Without it: that beside the pool's socket.",
        ),
    ] = None,
    at_start: Annotated[
        bool,
        typer.Option(
            "--at-start", help="Ask for the slice when a container starts, not when it first uses CUDA."
        ),
    ] = False,
    wait: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="With --at-start: how long a start waits in the queue."),
    ] = 30,
    pool: Pool = None,
    state: State = None,
) -> None:
    """Write the CDI file by which container runtimes give slices to images that have nothing of gpukernel in them.

    \b
    Examples:
      sudo gpukernel cdi
      podman run --device gpukernel.io/slice=v100-0.02 IMAGE
      gpukernel cdi --share 0.3 --model A100 --output -
    """
    from gpukernel.engines.containers import specification

    address = resolve_address(pool, state)
    shares = sorted(set(share or [spec.share for spec in STANDARD]))
    if wrong := [one for one in shares if not 0.001 <= one <= 1]:
        raise Problem(f"A share lies between 0.001 and 1, for example 0.02; {wrong[0]:g} does not.", USAGE)
    known: dict[str, bool] = {}
    for device in ask_pool(pool, state, lambda client: client.devices()):
        known[short_model(device.name)] = device.name.endswith(SIMULATED)
    models = {
        name: simulated
        for name, simulated in sorted(known.items())
        if not model or any(one.lower() in name.lower() for one in model)
    }
    if not models:
        asked = f" of the model {model[0][:40]}" if model else ""
        raise Problem(f"The pool has no device{asked}; see “gpukernel list-gpus”.", NOT_THERE)
    folders = sockets if sockets is not None else _own_sockets(address)
    if missing := [folder for folder in folders if not folder.is_dir()]:
        raise Problem(f"There is no folder {missing[0]}.", NOT_THERE)
    folders = [folder.absolute() for folder in folders]
    slices = (
        specification.SliceDevice(name, part, simulated)
        for name, simulated in models.items()
        for part in shares
    )
    devices = {one.name: one for one in slices}  # of two with one name a runtime takes neither
    text = json.dumps(
        specification.specification(
            devices.values(),
            folders,
            {
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "GPUKERNEL_POOL": address,
                "GPUKERNEL_CONTAINER_SOCKETS": ":".join(map(str, folders)),
                "GPUKERNEL_CONTAINER_WAIT": f"{wait:g}",
                **{name: os.environ[name] for name in ("GPUKERNEL_NATIVE_DIR",) if name in os.environ},
            },
            at_start=at_start,
        ),
        indent=2,
    )
    if output == "-":
        print(text)
        return
    _write(Path(output), text)
    complain(
        f"{output} has {len(devices)} devices; now “podman run --device {specification.KIND}={next(iter(devices))} IMAGE”."
    )


def _own_sockets(address: str) -> list[Path]:
    """Return the folder of sockets for containers beside the pool's socket, where the pool is on this machine."""
    if not address.startswith("unix:"):
        return []
    folder = container_sockets(Path(address.removeprefix("unix:")).parent)
    return [folder] if folder.is_dir() else []


def _write(file: Path, text: str) -> None:
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(f"{text}\n")
        draft.chmod(0o644)  # runtimes of any account read it; there is no secret in it
        draft.replace(file)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise Problem(
            f"{file} cannot be written: {error.strerror}. Run it as root, or with --output FILE.", FAILED
        ) from None
