"""``gpukernel kernelspec``: the kernels on slices that Jupyter's launcher shows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gpukernel.cli.terminal import completion
from gpukernel.cli.terminal.formats import Format, FormatOption, chosen, present
from gpukernel.cli.terminal.listing import Column, Listing
from gpukernel.cli.terminal.output import FAILED, NOT_THERE, USAGE, Problem
from gpukernel.cli.terminal.usage import Group
from gpukernel.jupyter import kernelspecs

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True, help="Install, list and remove Jupyter kernels on GPU slices.", cls=Group
)

Json = Annotated[bool, typer.Option("--json", help="A list of objects for programs.")]


@app.command()
def install(
    share: Annotated[
        list[float] | None,
        typer.Option(
            "--share",
            metavar="SHARE",
            help="Part of a device, 0.001 to 1; may be repeated. Without it: 0.02, 0.05, 0.1, 0.25, 1.0.",
        ),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="Device model, part of its name.")
    ] = "V100",
    user: Annotated[bool, typer.Option("--user", help="For this user, in every environment.")] = False,
    sys_prefix: Annotated[
        bool, typer.Option("--sys-prefix", help="Into this Python environment (the default).")
    ] = False,
    prefix: Annotated[
        Path | None, typer.Option("--prefix", metavar="PREFIX", help="Below PREFIX/share/jupyter/kernels.")
    ] = None,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Directory name of the one kernel.")
    ] = "",
    display_name: Annotated[
        str, typer.Option("--display-name", metavar="WORDS", help="Name in the launcher of the one kernel.")
    ] = "",
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait",
            help="Seconds that a start waits for its slice; then the kernel starts, and its first CUDA call waits.",
        ),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            metavar="MODE",
            help="remote; direct: a GPU of the kernel's own machine, without a worker; or auto.",
        ),
    ] = "remote",
    on_first_use: Annotated[
        bool,
        typer.Option("--on-first-use", help="Ask for the slice when CUDA is first used, not at the start."),
    ] = False,
    priority: Annotated[
        str,
        typer.Option(
            "--class", metavar="CLASS", help="interactive; or later in the queue, batch or scavenger."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Install the kernels that the launcher shows as “V100 × 0.02” and so on.

    \b
    Examples:
      gpukernel kernelspec install
      gpukernel kernelspec install --user --share 0.3 --model A100
    """
    if sum((user, sys_prefix, prefix is not None)) > 1:
        raise Problem("Give only one of --user, --sys-prefix and --prefix.", USAGE)
    shares = share or [spec.share for spec in kernelspecs.STANDARD]
    if len(shares) > 1 and (name or display_name):
        raise Problem("--name and --display-name go with exactly one --share.", USAGE)
    try:
        policy = "on_first_use" if on_first_use else ""
        specs = [
            kernelspecs.SliceSpec(
                one, model, name, display_name, wait, mode=mode, acquire=policy, priority=priority
            )
            for one in shares
        ]
        places = [kernelspecs.write(spec, _kernels(user, prefix)) for spec in specs]
    except kernelspecs.InvalidSpec as error:
        raise Problem(str(error), USAGE) from None
    except OSError as error:
        raise Problem(
            f"The kernels cannot be written to {_kernels(user, prefix)}: {error.strerror}. Choose --user or --prefix.",
            FAILED,
        ) from None
    _show(list(zip(specs, places, strict=True)), chosen(Format.TABLE, as_json))


@app.command("list")
def list_(form: FormatOption = Format.TABLE, as_json: Json = False) -> None:
    """List the kernels on slices that Jupyter finds."""
    _show(kernelspecs.installed(), chosen(form, as_json))


@app.command()
def remove(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Kernel names, as in “list”.", autocompletion=completion.kernels),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all kernels on slices.")] = False,
    as_json: Json = False,
) -> None:
    """Remove kernels on slices; other kernels are never touched.

    \b
    Examples:
      gpukernel kernelspec remove gpu-v100-0.02
      gpukernel kernelspec remove --all
    """
    found = {spec.name: (spec, place) for spec, place in kernelspecs.installed()}
    wanted = list(found) if everything else names or []
    if not wanted and not everything:
        raise Problem("Name the kernels to remove, or give --all.", USAGE)
    for one in wanted:
        if one not in found:
            raise Problem(
                f"There is no kernel on a slice named “{one}”; “gpukernel kernelspec list” shows those there are.",
                NOT_THERE,
            )
    for one in wanted:
        kernelspecs.remove(found[one][1])
    if as_json:
        _show([found[one] for one in wanted], Format.JSON)


def _kernels(user: bool, prefix: Path | None) -> Path:
    if user:
        from jupyter_core.paths import jupyter_data_dir

        return Path(jupyter_data_dir()) / "kernels"
    return (prefix or Path(sys.prefix)) / "share" / "jupyter" / "kernels"


def _show(found: list[tuple[kernelspecs.SliceSpec, Path]], form: Format) -> None:
    rows = [
        {
            "name": spec.name,
            "display_name": spec.display_name,
            "share": spec.share,
            "model": spec.model,
            "directory": str(place),
        }
        for spec, place in found
    ]
    listing = Listing(
        [
            Column("Kernel", lambda row: row[0].display_name, least=12),
            Column("Name", lambda row: row[0].name, drop=1),
            Column("Share", lambda row: f"{row[0].share:g}", drop=3, right=True),
            Column("Model", lambda row: row[0].model, drop=4),
            Column("Directory", lambda row: str(row[1]), drop=2, least=24),
        ],
        found,
        lambda row: row[0].name,
    )
    nothing = "No kernels on slices; “gpukernel kernelspec install” installs them."
    present(rows, listing, form, nothing)
