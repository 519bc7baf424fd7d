"""The commands with their options; the modules beside this one carry them out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpukernel import __version__
from gpukernel.cli.demo import demo
from gpukernel.cli.engines.cdi import cdi
from gpukernel.cli.engines.delegate import delegate
from gpukernel.cli.engines.kubernetes import app as kubernetes_app
from gpukernel.cli.engines.placed import app as lease_app
from gpukernel.cli.engines.slurm import app as slurm_app
from gpukernel.cli.kernelspec import app as kernelspec_app
from gpukernel.cli.options import (
    Command,
    ConfinementSetting,
    Course,
    DataTlsOption,
    Devices,
    Direct,
    Everybody,
    Filter,
    Form,
    HostMemory,
    HubApi,
    Level,
    LogFormat,
    LogLevel,
    Model,
    Name,
    NoticeTime,
    Pool,
    Priority,
    Server,
    Simulate,
    State,
    TcpHost,
    Watchdog,
    WorkerAccounts,
)
from gpukernel.cli.pool import app as pool_app
from gpukernel.cli.quota import app as quota_app
from gpukernel.cli.reserve import app as reserve_app
from gpukernel.cli.server import app as server_app
from gpukernel.cli.showing import app as showing_app
from gpukernel.cli.terminal import completion
from gpukernel.cli.terminal.man import man
from gpukernel.cli.terminal.usage import AllCommands
from gpukernel.cli.token import app as token_app
from gpukernel.common.data_tls import DataTls

__all__ = ["app"]

app = typer.Typer(
    name="gpukernel",
    help="Slices of networked GPUs for Jupyter kernels and for any program that uses CUDA.",
    no_args_is_help=True,
    cls=AllCommands,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(kernelspec_app, name="kernelspec")
app.add_typer(kubernetes_app, name="kubernetes")
app.add_typer(lease_app, name="lease")
app.add_typer(pool_app, name="pool")
app.add_typer(quota_app, name="quota")
app.add_typer(reserve_app, name="reserve")
server_app.command()(delegate)
app.add_typer(server_app, name="server")
app.add_typer(slurm_app, name="slurm")
app.add_typer(token_app, name="token")
app.add_typer(showing_app)
app.command()(cdi)
app.command()(man)
app.command()(demo)


def _version(value: bool) -> None:
    if value:
        print(f"gpukernel {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def up(
    simulate: Simulate = "",
    state: State = None,
    tcp_host: TcpHost = "",
    data_tls: DataTlsOption = DataTls.AUTO,
    name: Name = "",
    watchdog: Watchdog = None,
    host_memory: HostMemory = 1024,
    confinement: ConfinementSetting = "auto",
    worker_accounts: WorkerAccounts = "1900000000-1900000999",
    direct: Direct = False,
    everybody: Everybody = False,
    hub_api: HubApi = "",
    log_level: LogLevel = Level.WARNING,
    log_format: LogFormat = Form.TEXT,
) -> None:
    """Run a pool and this machine's agent in one process, in the foreground.

    \b
    Examples:
      gpukernel up                        # this machine's NVIDIA GPUs
      gpukernel up --simulate v100:2      # two simulated V100
    """
    from gpukernel.cli import services

    services.up(
        simulate,
        state,
        tcp_host,
        data_tls,
        name,
        watchdog,
        host_memory,
        confinement,
        worker_accounts,
        direct,
        everybody,
        hub_api,
        log_level,
        log_format,
    )


@app.command()
def agent(
    pool: Pool = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Holds the agent's token, where --pool names no connection file."),
    ] = None,
    simulate: Simulate = "",
    state: State = None,
    tcp_host: TcpHost = "",
    data_tls: DataTlsOption = DataTls.AUTO,
    name: Name = "",
    watchdog: Watchdog = None,
    host_memory: HostMemory = 1024,
    confinement: ConfinementSetting = "auto",
    worker_accounts: WorkerAccounts = "1900000000-1900000999",
    direct: Direct = False,
    notice: NoticeTime = "0",
    log_level: LogLevel = Level.INFO,
    log_format: LogFormat = Form.TEXT,
) -> None:
    """Offer this machine's GPUs to a pool.

    \b
    Example:
      gpukernel agent --pool gpu1.pool --tcp-host gpu1.example.edu
      gpukernel agent --pool 10.0.0.5:7437 --token-file agent.token --tcp-host 10.0.0.21
      gpukernel agent --pool gpu1.pool --tcp-host gpu1.example.edu --notice 5m
    """
    from gpukernel.cli import services
    from gpukernel.cli.terminal.output import seconds

    services.agent(
        pool,
        token_file,
        simulate,
        state,
        tcp_host,
        data_tls,
        name,
        watchdog,
        host_memory,
        confinement,
        worker_accounts,
        direct,
        log_level,
        log_format,
        services.notice_of(seconds(notice)),
    )


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Command,
    devices: Devices = 1,
    share: Annotated[
        float | None,
        typer.Option("-p", metavar="SHARE", help="Share of each device's memory, above 0 and up to 1."),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option("-m", metavar="MIB", help="Memory on each device in MiB, instead of a share."),
    ] = None,
    model: Model = "",
    filter: Filter = "",
    wait: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Longest wait in the queue, such as 10m; 0 fails at once, -1 waits for ever."
        ),
    ] = "-1",
    at_most: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="Give the slice back after this time in any case; such a program may start before others whom it cannot delay.",
        ),
    ] = "0",
    course: Course = "",
    priority: Priority = "interactive",
    direct: Annotated[
        bool,
        typer.Option("--direct", help="On a GPU server itself: use the GPU there, at native speed."),
    ] = False,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="On simulated devices: show what each kernel does when the program has ended."
        ),
    ] = False,
    profile_to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The same into a file, by its ending: .json, or .html with a picture."
        ),
    ] = None,
    pool: Pool = None,
    state: State = None,
) -> None:
    """Run a program on a slice, then give the slice back.

    The program's exit status and signals are passed on; 128 + N means that signal N ended it.

    \b
    Examples:
      gpukernel run -p 0.05 -- python train.py
      gpukernel run -m 2048 --model V100 -- ./a.out --size 100
      gpukernel run -n 2 -p 0.5 -- python two_devices.py
      gpukernel run -p 0.5 --course ml101 --wait 10m --at-most 30m -- python train.py
      gpukernel run -p 0.5 --class batch -- python train.py
      gpukernel run --direct -p 0.1 -- python train.py
      gpukernel run --profile -p 0.1 -- python train.py
      gpukernel run --profile-to train.html -p 0.1 -- python train.py
    """
    from gpukernel.cli import running

    running.run(
        command,
        devices,
        share,
        memory,
        model,
        filter,
        course,
        wait,
        at_most,
        direct,
        pool,
        state,
        profile,
        profile_to,
        priority,
    )


@app.command()
def request(
    devices: Devices = 1,
    share: Annotated[
        float | None, typer.Option("-p", metavar="SHARE", help="Share of each device's memory.")
    ] = None,
    memory: Annotated[
        int | None, typer.Option("-m", metavar="MIB", help="Memory on each device, instead of a share.")
    ] = None,
    model: Model = "",
    filter: Filter = "",
    course: Course = "",
    priority: Priority = "interactive",
    wait: Annotated[
        str, typer.Option(metavar="TIME", help="Longest wait in the queue; -1: for ever.")
    ] = "-1",
    keep: Annotated[
        str, typer.Option(metavar="TIME", help="It ends when it was not used for so long; at most 1h.")
    ] = "1h",
    pool: Pool = None,
    state: State = None,
) -> None:
    """Hold a slice for several commands, and print its lease.

    \b
    Example:
      gpukernel request -n 1 -m 2048 --wait 10m
      gpukernel client -- python prepare.py
      gpukernel client -- python train.py
      gpukernel release
    """
    from gpukernel.cli import lease_commands

    lease_commands.request(devices, share, memory, model, filter, course, wait, keep, pool, state, priority)


@app.command(context_settings={"allow_interspersed_args": False})
def client(
    command: Command,
    lease: Annotated[
        str | None,
        typer.Option(
            "--lease",
            metavar="LEASE",
            help="Which lease, where you hold several.",
            autocompletion=completion.held_leases,
        ),
    ] = None,
    pool: Pool = None,
    state: State = None,
) -> None:
    """Run a program on a slice that “gpukernel request” holds.

    \b
    Example:
      gpukernel client -- python train.py
    """
    from gpukernel.cli import lease_commands

    lease_commands.client(command, lease, pool, state)


@app.command()
def release(
    lease: Annotated[
        str | None,
        typer.Argument(
            metavar="LEASE",
            help="Its id or the beginning of it.",
            autocompletion=completion.held_leases,
        ),
    ] = None,
    all: Annotated[bool, typer.Option("--all", "-a", help="All that you hold.")] = False,
    pool: Pool = None,
    state: State = None,
) -> None:
    """Give a slice back that “gpukernel request” holds.

    \b
    Examples:
      gpukernel release
      gpukernel release --all
    """
    from gpukernel.cli import lease_commands

    lease_commands.release(lease, all, pool, state)


@app.command()
def resize(
    lease: Annotated[
        str | None,
        typer.Argument(
            metavar="LEASE",
            help="The lease or its beginning; inside a slice it is that one.",
            autocompletion=completion.lease_ids,
        ),
    ] = None,
    share: Annotated[
        float | None, typer.Option("-p", metavar="SHARE", help="New share of each device's memory.")
    ] = None,
    memory: Annotated[
        int | None, typer.Option("-m", metavar="MIB", help="New memory on each device, instead of a share.")
    ] = None,
    pool: Pool = None,
    state: State = None,
) -> None:
    """Make a slice larger or smaller while its programs run.

    \b
    Examples:
      gpukernel resize 3f2a -p 0.1
      gpukernel run -p 0.05 -- sh -c "gpukernel resize -m 4096; python train.py"
    """
    from gpukernel.cli import resize

    resize.resize(lease, share, memory, pool, state)


@app.command()
def drain(
    server: Server,
    deadline: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="End the leases that are left after this time, such as 30m; 0: never."
        ),
    ] = "0",
    wait: Annotated[bool, typer.Option("--wait", help="Return when no lease is left.")] = False,
    pool: Pool = None,
    state: State = None,
) -> None:
    """Take a GPU server out: it gets no new leases, and those that it has end by themselves or at the deadline.

    \b
    Example:
      gpukernel drain gpu1 --deadline 2h --wait && ssh gpu1 reboot
    """
    from gpukernel.cli import server as command

    command.drain(server, deadline, wait, pool, state)


@app.command()
def undrain(
    server: Server,
    pool: Pool = None,
    state: State = None,
) -> None:
    """Let a drained GPU server have leases again.

    \b
    Example:
      gpukernel undrain gpu1
    """
    from gpukernel.cli import server as command

    command.undrain(server, pool, state)
