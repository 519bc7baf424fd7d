"""The options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpukernel.cli.terminal import completion
from gpukernel.common.data_tls import DataTls
from gpukernel.common.logs import Form, Level

__all__ = [
    "CallsAtOnce",
    "CallsPerSecond",
    "Command",
    "ConfinementSetting",
    "Course",
    "DataTlsOption",
    "Devices",
    "Direct",
    "Everybody",
    "Filter",
    "Form",
    "Grace",
    "HostMemory",
    "HubApi",
    "Json",
    "Level",
    "LogFormat",
    "LogLevel",
    "Model",
    "Name",
    "NoticeTime",
    "Pool",
    "Priority",
    "Server",
    "Simulate",
    "State",
    "TcpHost",
    "Watchdog",
    "WorkerAccounts",
]

Pool = Annotated[
    str | None,
    typer.Option(
        "--pool",
        metavar="ADDRESS",
        help="The pool: unix:/path/pool.sock, tls://HOST:PORT, HOST:PORT, several of the last two with commas, or a connection file. Else GPUKERNEL_POOL.",
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state", metavar="DIR", help="State directory. Else GPUKERNEL_STATE, else the user's XDG directory."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="The same as -o json: a list of objects for programs.")]
Simulate = Annotated[
    str,
    typer.Option(metavar="MODELS", help="Simulated GPUs in place of real ones, such as v100:2 or a100,t4:4."),
]
TcpHost = Annotated[
    str,
    typer.Option(
        metavar="HOST",
        help="Let programs on other machines reach the workers at this address of this machine.",
    ),
]
DataTlsOption = Annotated[
    DataTls,
    typer.Option(
        "--data-tls",
        help="Encrypt what passes between programs and workers over TCP; auto: wherever --tcp-host is not loopback.",
    ),
]
Name = Annotated[
    str, typer.Option(metavar="NAME", help="This server's name in the pool; else the host name.")
]
Watchdog = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0,
        help="End work on a slice that does not end within this time; 0: never. "
        "Else half an hour on real GPUs that several people share, and never on one's own or on simulated ones.",
    ),
]
HostMemory = Annotated[
    int,
    typer.Option(
        "--host-memory",
        metavar="MIB",
        min=64,
        help="This machine's own memory that the programs of one slice may make its worker take.",
    ),
]
ConfinementSetting = Annotated[
    str,
    typer.Option(
        "--confinement",
        metavar="auto|off|RUNGS",
        help="What workers give up before they serve anybody: every rung that the machine has; nothing; or these, separated by commas: "
        "cgroup, account, no-new-privileges, limits, landlock, system-calls.",
    ),
]
WorkerAccounts = Annotated[
    str,
    typer.Option(
        "--worker-accounts",
        metavar="FIRST-LAST",
        help="The numbers of accounts that nobody else has, one for each worker; used where the agent may change accounts, as root may.",
    ),
]
Direct = Annotated[
    bool,
    typer.Option(
        "--direct",
        help="Let programs on this machine use its GPUs themselves (docs/direct-mode.md says whom that trusts).",
    ),
]
Filter = Annotated[
    str,
    typer.Option(
        metavar="WHICH",
        help="Which devices: model=V100, server=gpu1, device=gpu1/0 or uuid=GPU-…; several with “and” between.",
    ),
]
Everybody = Annotated[
    bool,
    typer.Option(
        "--everybody", help="Every account of this machine may ask over the unix socket, each for itself."
    ),
]
CallsPerSecond = Annotated[
    float,
    typer.Option(
        min=0.1,
        envvar="GPUKERNEL_CALLS_PER_SECOND",
        help="Calls a second that a person may make for long; a JupyterHub's count for those for whom it makes them.",
    ),
]
CallsAtOnce = Annotated[
    float,
    typer.Option(
        min=1,
        envvar="GPUKERNEL_CALLS_AT_ONCE",
        help="Calls that a person may make at once, after having made none for a while.",
    ),
]
HubApi = Annotated[
    str,
    typer.Option(
        "--hub-api",
        metavar="URL",
        envvar="GPUKERNEL_HUB_API",
        help="Take tokens of this JupyterHub too, each for its person: http://127.0.0.1:8081/hub/api, or https:// elsewhere.",
    ),
]
LogLevel = Annotated[
    Level,
    typer.Option(
        "--log-level",
        envvar="GPUKERNEL_LOG_LEVEL",
        help="Leave less important lines out of the log, which goes to standard error.",
    ),
]
LogFormat = Annotated[
    Form,
    typer.Option(
        "--log-format",
        envvar="GPUKERNEL_LOG_FORMAT",
        help="Lines for people, or a JSON object a line.",
    ),
]
Grace = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="How long slices live on a GPU server that does not reach the pool, 5s to 1d: so long the pool may be away, and "
        "no slice is lost. The memory of a server that is lost is fenced for 1.23 times as long, and 13 s.",
    ),
]
NoticeTime = Annotated[
    str,
    typer.Option(
        "--notice",
        metavar="TIME",
        help="When told to stop (SIGTERM, Ctrl-C): take no new leases, tell the holders, and end after this time, or once nobody is left; "
        "told again, at once. 0: end at once.",
    ),
]
Command = Annotated[list[str], typer.Argument(metavar="-- CMD…", help="The program and its arguments.")]
Devices = Annotated[int, typer.Option("-n", metavar="N", help="How many devices, each with a slice.")]
Model = Annotated[
    str,
    typer.Option(
        metavar="MODEL", help="Part of the device's name, such as V100.", autocompletion=completion.models
    ),
]
Priority = Annotated[
    str,
    typer.Option(
        "--class",
        metavar="CLASS",
        help="interactive, or later in the queue: batch, or scavenger, which comes after everybody.",
    ),
]
Course = Annotated[str, typer.Option(metavar="NAME", help="The course whose quota this is for.")]
Server = Annotated[
    str,
    typer.Argument(
        metavar="SERVER", help="As “gpukernel list-gpus” shows it.", autocompletion=completion.servers
    ),
]
