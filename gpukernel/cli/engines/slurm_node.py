"""``gpukernel slurm node`` and ``gpukernel slurm configure``: slices for jobs that ask for ``--gres=shard:N``."""

from __future__ import annotations

import asyncio
import platform
import signal
import stat
from pathlib import Path
from typing import Annotated

import typer

from gpukernel.cli.options import Level, LogFormat, LogLevel, Pool, State
from gpukernel.cli.terminal.output import USAGE, Problem, complain, failure, seconds
from gpukernel.common.logs import Form

__all__ = ["configure", "node"]

FOLDER = "/run/gpukernel-slurm"

JobsAt = Annotated[
    Path,
    typer.Option(
        "--folder", metavar="DIR", help="Where jobs find their lease files; root's, on the node itself."
    ),
]


def node(
    server: Annotated[
        str, typer.Option(metavar="NAME", help="The GPU server that runs on this node; else the node's name.")
    ] = "",
    name: Annotated[
        str, typer.Option("--node", metavar="NAME", help="Slurm's name of this node; else its host name.")
    ] = "",
    device: Annotated[
        list[str] | None,
        typer.Option(
            metavar="UUID",
            help="A device, in the order of gres.conf; may be repeated. Else the server's, whose numbers are Slurm's.",
        ),
    ] = None,
    sweep: Annotated[
        str,
        typer.Option(metavar="TIME", help="How often to look for leases whose job is over; 1s to 10m."),
    ] = "30s",
    folder: JobsAt = Path(FOLDER),
    pool: Pool = None,
    state: State = None,
    log_level: LogLevel = Level.INFO,
    log_format: LogFormat = Form.TEXT,
) -> None:
    """Give slices to this node's jobs that ask for --gres=shard:N; it runs in the foreground, as root.

    Slurm chooses the GPU, and the pool has to let it: “gpukernel server delegate”.  Stopped, it leaves the jobs their slices; started
    again, it goes on.  “gpukernel slurm configure” prints what Slurm needs.

    \b
    Examples:
      gpukernel slurm node --pool /etc/gpukernel/slurm.pool
      gpukernel slurm node --pool slurm.pool --node n1 --server gpu1 --device GPU-5e2f… --device GPU-77a0…
    """
    from gpukernel import native
    from gpukernel.client.engines import EngineClient
    from gpukernel.common import logs
    from gpukernel.common.address import resolve_address
    from gpukernel.common.errors import PoolError
    from gpukernel.common.machine import raise_descriptor_limit
    from gpukernel.engines.shards.folder import JobsFolder
    from gpukernel.engines.shards.node import ShardNode
    from gpukernel.engines.slurm.commands import Slurm

    every = seconds(sweep)
    if not 1 <= every <= 600:
        raise Problem(f"--sweep {sweep} is not possible; it is 1s to 10m.", USAGE)
    logs.configure(log_level, log_format)
    raise_descriptor_limit()
    name = name or platform.node().partition(".")[0]
    address = resolve_address(pool, state)

    if hidden := hidden_from_others(native.shim_dir()):
        complain(
            f"accounts other than {hidden.owner()} cannot read {hidden}, so their jobs would not find gpukernel's libraries; "
            "install it where everybody can read, such as /opt/gpukernel."
        )

    def connect() -> EngineClient:
        client = EngineClient(address)
        client.engine = "slurm"
        return client

    work = ShardNode(
        Slurm(), JobsFolder(folder.absolute(), name), name, server or name, device or [], connect
    )

    async def run() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await work.run(
            every,
            stop,
            lambda: print(f"Shard jobs of {name} get their slices. Stop it with Ctrl-C.", flush=True),
        )

    try:
        asyncio.run(run())
    except PoolError as error:
        raise failure(error) from None


def hidden_from_others(folder: Path) -> Path | None:
    """Return the first folder on the way to `folder` that not every account may pass through; None where all may."""
    places = (*reversed(folder.parents), folder)
    return next((place for place in places if not place.stat().st_mode & stat.S_IXOTH), None)


def configure(
    gpus: Annotated[int, typer.Option(min=1, max=64, help="GPUs of a node.")] = 1,
    shards: Annotated[int, typer.Option(min=1, max=1000, help="Shards of a GPU.")] = 100,
    nodes: Annotated[
        str, typer.Option(metavar="NAMES", help="The nodes, as slurm.conf names them.")
    ] = "gpu[1-4]",
    device: Annotated[
        str, typer.Option(metavar="PATH", help="The file of a GPU, without its number.")
    ] = "/dev/nvidia",
    folder: JobsAt = Path(FOLDER),
    filter_: Annotated[
        bool,
        typer.Option("--filter", help="Print cli_filter.lua instead, which gives jobs their variables."),
    ] = False,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="With --filter: the nodes' devices are simulated.")
    ] = False,
) -> None:
    """Print the lines of slurm.conf and gres.conf by which jobs get slices with --gres=shard:N, or the file cli_filter.lua.

    \b
    Examples:
      gpukernel slurm configure --gpus 4 --nodes 'gpu[1-8]'
      gpukernel slurm configure --filter > /etc/slurm/cli_filter.lua
    """
    from gpukernel import native
    from gpukernel.engines.shards.recipe import cli_filter

    if simulated and not filter_:
        raise Problem("--simulated says what --filter prints; give both.", USAGE)
    if filter_:
        print(cli_filter(folder.absolute(), simulated=simulated), end="")
        return
    hook = str(native.slurm_hook())
    if folder != Path(FOLDER):
        print(f"# /etc/slurm/gpukernel-epilog, with mode 0755\n#!{hook} {folder}\n")
        hook = "/etc/slurm/gpukernel-epilog"
    print(
        f"# slurm.conf\nGresTypes=gpu,shard\nSelectType=select/cons_tres\n"
        f"AccountingStorageTRES=gres/gpu,gres/shard  # with slurmdbd only\n"
        f"CliFilterPlugins=lua  # and cli_filter.lua beside slurm.conf: --filter\nEpilog={hook}\n"
        f"NodeName={nodes} Gres=gpu:{gpus},shard:{gpus * shards} …\n\n# gres.conf"
    )
    for number in range(gpus):
        print(f"Name=gpu File={device}{number} Flags=no_gpu_env")
    for number in range(gpus):
        print(f"Name=shard Count={shards} File={device}{number} Flags=no_gpu_env")
