"""``gpukernel demo``: a pool, a slice and a trained network, from nothing, in one command."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from gpukernel import __version__
from gpukernel.cli.terminal.charset import make_console, terminal_width
from gpukernel.cli.terminal.listing import Column, Listing
from gpukernel.cli.terminal.output import FAILED, Problem, size
from gpukernel.embedded import EmbeddedPool, PoolDidNotStart
from gpukernel.jupyter import kernelspecs
from gpukernel.jupyter.errors import SliceUnavailable

if TYPE_CHECKING:
    from gpukernel.common.model import Lease

__all__ = ["demo", "demo_notebooks"]


STANDARD_KERNEL = "gpu-v100-0.02"
OF_A_SLICE = re.compile(r"gpu-(?P<model>[a-z0-9]+)-(?P<share>[01](\.\d+)?)")


class DemoFailed(Exception):
    """An error: the demo cannot go on; the text is the sentence that says why."""


def demo(
    notebook: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Notebook to execute in place of 02-classification.")
    ] = None,
    kernel: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Kernel to execute it in; the pool simulates GPUs of its model. The notebook's own, else gpu-v100-0.02.",
        ),
    ] = "",
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Do not open JupyterLab afterwards.")
    ] = False,
    keep: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the executed notebook to this file.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Execute the notebook although it was executed before.")
    ] = False,
) -> None:
    """Train a small network in a “V100 × 0.02” kernel on simulated GPUs, then open JupyterLab.

    Once the notebook has been executed in this environment, the next demo goes straight to JupyterLab.

    \b
    Examples:
      gpukernel demo
      gpukernel demo --no-browser --keep executed.ipynb
      gpukernel demo --again
      gpukernel demo --notebook notebooks/04-jax.ipynb
    """
    console = make_console()
    opens = at_terminal() and not no_browser
    try:
        path = notebook or demo_notebooks() / "02-classification.ipynb"
        kernel = kernel or _kernel_of(path)
        model, own = _slice_of(kernel)
        for spec in kernelspecs.STANDARD:
            kernelspecs.write(spec, Path(sys.prefix, "share", "jupyter", "kernels"))
        with tempfile.TemporaryDirectory(prefix="gpukernel-") as state:
            if own is not None:
                _offer_for_now(own, Path(state, "jupyter"))
            with console.status(f"Starting a pool with one simulated server: 2 × {model.upper()} …"):
                pool = EmbeddedPool(f"{model}:2", Path(state))
                pool.start()
            try:
                # The provisioner runs in this process and finds the pool as in any Jupyter server.
                os.environ.pop("GPUKERNEL_POOL", None)
                os.environ["GPUKERNEL_STATE"] = state
                _print_way_in(state, console)
                straight = opens and not (again or notebook or keep) and _was_executed()
                if straight:
                    console.print("The notebook was executed here before; --again does it once more.")
                else:
                    _execute(path, kernel, keep, console)
                    _note_execution()
                if opens:
                    _open_lab(path.parent, pool.environment, console)
            finally:
                pool.stop()
    except (DemoFailed, PoolDidNotStart, SliceUnavailable, OSError) as error:
        raise Problem(f"The demo stopped: {error}", FAILED) from None


def _kernel_of(path: Path) -> str:
    """Return the kernel that a notebook was written for, where its name is that of a slice."""
    try:
        name = json.loads(path.read_text(encoding="utf-8"))["metadata"]["kernelspec"]["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return STANDARD_KERNEL
    return name if isinstance(name, str) and OF_A_SLICE.fullmatch(name) else STANDARD_KERNEL


def _slice_of(kernel: str) -> tuple[str, kernelspecs.SliceSpec | None]:
    """Return the model of the devices that a kernel's slice is of, and its kernelspec where it is none of the standard ones."""
    named = OF_A_SLICE.fullmatch(kernel)
    if not named or named["model"] == "v100":
        return "v100", None
    return named["model"], kernelspecs.SliceSpec(float(named["share"]), named["model"].upper())


def _offer_for_now(spec: kernelspecs.SliceSpec, data: Path) -> None:
    """Let this process and those that it starts find a kernelspec; the environment keeps none that later pools cannot serve."""
    kernelspecs.write(spec, data / "kernels")
    others = os.environ.get("JUPYTER_PATH")
    os.environ["JUPYTER_PATH"] = f"{data}{os.pathsep}{others}" if others else str(data)


def _note() -> Path:
    """Return the file that says with which version the notebook was executed in this environment."""
    return Path(sys.prefix, "share", "gpukernel", "demo")


def _was_executed() -> bool:
    try:
        return _note().read_text() == __version__
    except OSError:
        return False


def _note_execution() -> None:
    note = _note()
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(__version__)


def _print_way_in(state: str, console: Console) -> None:
    """Print how commands in another terminal reach the demo's pool while it runs."""
    command = Path(sys.executable).with_name("gpukernel")
    here = command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command
    console.print("From another terminal, while this runs:")
    for words in ("ps", "run -p 0.1 -- python train.py"):
        console.print(
            f"  GPUKERNEL_STATE={shlex.quote(state)} {shlex.quote(str(here))} {words}", markup=False
        )


def at_terminal() -> bool:
    """Return whether somebody sits there who can look at JupyterLab, and end it."""
    return sys.stdout.isatty() and sys.stdin.isatty()


def demo_notebooks() -> Path:
    """Return the notebooks of the checkout, else those that came with the package."""
    data = Path(sysconfig.get_path("data"), "share", "gpukernel", "notebooks")
    for place in (Path(__file__).parents[2] / "notebooks", data):
        if (place / "02-classification.ipynb").exists():
            return place
    raise DemoFailed(
        "the demo's notebooks are not installed; name one with --notebook, or run it in the checkout."
    )


def _execute(path: Path, kernel: str, keep: Path | None, console: Console) -> None:
    import nbformat
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    if not path.exists():
        raise DemoFailed(f"there is no notebook {path}.")
    content = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(
        content, kernel_name=kernel, timeout=300, resources={"metadata": {"path": str(path.parent)}}
    )
    progress = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    started = time.monotonic()
    try:
        with progress:
            task = progress.add_task("Starting the kernel", total=len(content.cells))
            # Named as a Jupyter server names it; ipykernel's own start-up words are left out.
            named = {**os.environ, "JPY_SESSION_NAME": str(path)}
            with client.setup_kernel(env=named, stderr=subprocess.DEVNULL):
                for index, cell in enumerate(content.cells):
                    if title := _title(cell):
                        progress.update(task, description=title)
                    client.execute_cell(cell, index)
                    progress.advance(task)
                seconds = time.monotonic() - started
                leases = asyncio.run(_leases())  # while the kernel lives and holds its slice
    except CellExecutionError as error:
        raise DemoFailed(f"a cell of {path.name} failed: {error.ename}: {error.evalue}") from None
    except (CellTimeoutError, DeadKernelError, NoSuchKernel) as error:
        raise DemoFailed(" ".join(str(error).split())) from None
    if keep:
        nbformat.write(content, keep)  # type: ignore[no-untyped-call]
    _print_result(_result(content), console)
    _print_leases(leases, seconds, console)


def _title(cell: Any) -> str:
    """Return the heading that a Markdown cell begins with, or nothing."""
    first = cell.source.partition("\n")[0]
    return first.lstrip("# ") if cell.cell_type == "markdown" and first.startswith("#") else ""


def _result(content: Any) -> dict[str, object]:
    """Return the dictionary that the last code cell shows."""
    for output in content.cells[-1].get("outputs", []):
        if text := output.get("data", {}).get("text/plain"):
            try:
                value = ast.literal_eval(text)
            except (SyntaxError, ValueError):
                return {"result": text}
            return value if isinstance(value, dict) else {"result": value}
    return {}


async def _leases() -> list[Lease]:
    """Return the leases, once their workers' last figures have reached the pool."""
    from gpukernel.agent.agent import HEARTBEAT_SECONDS
    from gpukernel.client.pool import PoolClient, resolve_address

    await asyncio.sleep(
        HEARTBEAT_SECONDS + 0.5
    )  # a report of before the notebook's end looks like the last one
    async with PoolClient(resolve_address(None, None)) as client:
        return (await client.leases())[0]


def _print_result(result: dict[str, object], console: Console) -> None:
    if result:
        console.print(Text("\nWhat the notebook found", "bold"))
        longest = max(len(str(key)) for key in result)
        for key, value in result.items():
            console.print(f"  {key!s:<{longest}}  {value}", markup=False)


def _print_leases(leases: list[Lease], seconds: float, console: Console) -> None:
    listing = Listing(
        [
            Column("Holder", lambda row: row[0].holder.description, least=12),
            Column("Device", lambda row: row[1].device_name, drop=2, least=14),
            Column("Slice", lambda row: size(row[1].memory_bytes), right=True),
            Column(
                "Peak memory", lambda row: f"{row[1].usage.memory_peak_bytes / 2**20:.1f} MiB", right=True
            ),
            Column("CUDA calls", lambda row: f"{row[1].usage.cuda_calls:,}", drop=3, right=True),
            Column("GPU time", lambda row: f"{row[1].usage.gpu_seconds:.1f} s", drop=1, right=True),
            Column("Time", lambda _: f"{seconds:.1f} s", right=True),
        ],
        [(lease, piece) for lease in leases for piece in lease.slices],
        lambda row: row[0].id,
    )
    console.print(Text("\nWhat the pool saw", "bold"))
    console.print(listing.text(terminal_width()))


def _open_lab(notebooks: Path, environment: dict[str, str], console: Console) -> None:
    console.print("Opening JupyterLab; stop it and the pool with Ctrl-C.")
    command = [sys.executable, "-m", "jupyterlab", "--ServerApp.log_level=ERROR", str(notebooks)]
    if os.geteuid() == 0:
        command.append("--allow-root")
    lab = subprocess.Popen(command, env=environment)
    try:
        lab.wait()
    except KeyboardInterrupt:
        lab.wait()
