"""``gpukernel kernelspec``: the kernels on slices that Jupyter's launcher shows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from gpukernel.cli.output import complain
from gpukernel.jupyter import kernelspecs

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Install, list and remove Jupyter kernels on GPU slices.")

Json = Annotated[bool, typer.Option("--json", help="Write a list of objects for programs.")]


@app.command()
def install(
    share: Annotated[
        list[float] | None,
        typer.Option(
            "--share",
            help="Part of a device, 0.001 to 1; may be repeated. Without it: 0.02, 0.05, 0.1, 0.25, 1.0.",
        ),
    ] = None,
    model: Annotated[str, typer.Option("--model", help="Device model, part of its name.")] = "V100",
    user: Annotated[bool, typer.Option("--user", help="For this user, in every environment.")] = False,
    sys_prefix: Annotated[
        bool, typer.Option("--sys-prefix", help="Into this Python environment (the default).")
    ] = False,
    prefix: Annotated[
        Path | None, typer.Option("--prefix", help="Below PREFIX/share/jupyter/kernels.")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Directory name of the one kernel.")] = "",
    display_name: Annotated[
        str, typer.Option("--display-name", help="Name in the launcher of the one kernel.")
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
            "--mode", help="remote; direct: a GPU of the kernel's own machine, without a worker; or auto."
        ),
    ] = "remote",
    on_first_use: Annotated[
        bool,
        typer.Option("--on-first-use", help="Ask for the slice when CUDA is first used, not at the start."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Install the kernels that the launcher shows as “V100 × 0.02” and so on.

    \b
    Examples:
      gpukernel kernelspec install
      gpukernel kernelspec install --user --share 0.3 --model A100
    """
    if sum((user, sys_prefix, prefix is not None)) > 1:
        _stop("Give only one of --user, --sys-prefix and --prefix.")
    shares = share or [spec.share for spec in kernelspecs.STANDARD]
    if len(shares) > 1 and (name or display_name):
        _stop("--name and --display-name go with exactly one --share.")
    try:
        policy = "on_first_use" if on_first_use else ""
        specs = [
            kernelspecs.SliceSpec(one, model, name, display_name, wait, mode=mode, acquire=policy)
            for one in shares
        ]
        places = [kernelspecs.write(spec, _kernels(user, prefix)) for spec in specs]
    except kernelspecs.InvalidSpec as error:
        _stop(str(error))
    except OSError as error:
        _stop(
            f"The kernels cannot be written to {_kernels(user, prefix)}: {error.strerror}. Choose --user or --prefix."
        )
    _show(list(zip(specs, places, strict=True)), as_json)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the kernels on slices that Jupyter finds."""
    _show(kernelspecs.installed(), as_json)


@app.command()
def remove(
    names: Annotated[list[str] | None, typer.Argument(help="Kernel names, as in “list”.")] = None,
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
    chosen = list(found) if everything else names or []
    if not chosen and not everything:
        _stop("Name the kernels to remove, or give --all.")
    for one in chosen:
        if one not in found:
            _stop(
                f"There is no kernel on a slice named “{one}”; “gpukernel kernelspec list” shows those there are."
            )
    for one in chosen:
        kernelspecs.remove(found[one][1])
    if as_json:
        _show([found[one] for one in chosen], as_json)


def _kernels(user: bool, prefix: Path | None) -> Path:
    if user:
        from jupyter_core.paths import jupyter_data_dir

        return Path(jupyter_data_dir()) / "kernels"
    return (prefix or Path(sys.prefix)) / "share" / "jupyter" / "kernels"


def _show(found: list[tuple[kernelspecs.SliceSpec, Path]], as_json: bool) -> None:
    if as_json:
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
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    table = Table(box=box.SIMPLE_HEAD)
    for title in ("Kernel", "Name", "Share", "Model", "Directory"):
        table.add_column(title, justify="right" if title == "Share" else "left", overflow="fold")
    for spec, place in found:
        table.add_row(spec.display_name, spec.name, f"{spec.share:g}", spec.model, str(place))
    Console(width=None if sys.stdout.isatty() else 130).print(
        table if found else "No kernels on slices; “gpukernel kernelspec install” installs them."
    )


def _stop(sentence: str) -> NoReturn:
    complain(sentence)
    raise typer.Exit(1)
