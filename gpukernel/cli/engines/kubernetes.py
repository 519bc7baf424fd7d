"""``gpukernel kubernetes``: slices for pods, by Dynamic Resource Allocation."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import re
import signal
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpukernel.cli.engines.kubernetes_options import (
    Cdi,
    Claims,
    Cluster,
    Every,
    Kubeconfig,
    Libraries,
    Share,
    Sockets,
)
from gpukernel.cli.options import Level, LogFormat, LogLevel, Pool, State
from gpukernel.cli.terminal.output import FAILED, NOT_THERE, USAGE, Problem, failure
from gpukernel.cli.terminal.usage import Group
from gpukernel.common.errors import PoolError
from gpukernel.common.logs import Form

if TYPE_CHECKING:
    from lightkube import AsyncClient

    from gpukernel.client.engines import EngineClient
    from gpukernel.engines.kubernetes.claim_files import ClaimFiles

__all__ = ["app"]

app = typer.Typer(help="Give slices to pods of Kubernetes.", no_args_is_help=True, cls=Group)


def _needs_lightkube() -> None:
    try:
        import lightkube  # noqa: F401
    except ImportError:
        raise Problem(
            "This needs a client of Kubernetes: install “gpukernel[kubernetes]” with pip.", NOT_THERE
        ) from None


@contextlib.asynccontextmanager
async def _cluster(kubeconfig: Path | None) -> AsyncIterator[AsyncClient]:
    """Open a client of the cluster; a `Problem` where none is known."""
    from lightkube import AsyncClient, KubeConfig
    from lightkube.core.exceptions import ConfigError

    try:
        known = KubeConfig.from_file(str(kubeconfig)) if kubeconfig is not None else KubeConfig.from_env()
        api = AsyncClient(known.get())
    except (ConfigError, OSError, ValueError, AttributeError) as error:
        raise Problem(
            f"No cluster is known ({error}); name its file with --kubeconfig or KUBECONFIG.", NOT_THERE
        ) from None
    try:
        yield api
    finally:
        await api.close()


@contextlib.asynccontextmanager
async def _clients(
    kubeconfig: Path | None, pool: str | None, state: Path | None
) -> AsyncIterator[tuple[AsyncClient, EngineClient]]:
    """Open clients of the cluster and of the pool; a `Problem` where one of them is not known."""
    from gpukernel.client.engines import EngineClient
    from gpukernel.common.address import resolve_address

    async with _cluster(kubeconfig) as api, EngineClient(resolve_address(pool, state)) as client:
        client.engine = "kubernetes"
        yield api, client


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run until it fails, or until SIGINT or SIGTERM ends it."""

    async def until_stopped() -> None:
        task = asyncio.ensure_future(work)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    try:
        asyncio.run(until_stopped())
    except PoolError as error:
        raise failure(error) from None
    except OSError as error:  # of the kubelet's folders
        sentence = f"{error.filename} cannot be used: {error.strerror}" if error.filename else str(error)
        raise Problem(f"{sentence}.", FAILED) from None


def _files(claims: Path, cdi: Path, libraries: Path | None, sockets: list[Path] | None) -> ClaimFiles:
    """Return the files of a node's claims; a `Problem` where they cannot be there."""
    from gpukernel.engines.kubernetes.claim_files import ClaimFiles, not_in_memory
    from gpukernel.engines.kubernetes.node_libraries import copy_libraries

    if kind := not_in_memory(claims):
        raise Problem(
            f"{claims} is on {kind}, and secrets belong in memory; name a folder on tmpfs with --claims, such as one below /run.",
            USAGE,
        )
    try:
        copies = copy_libraries(libraries) if libraries is not None else None
        return ClaimFiles(claims, cdi, [one.absolute() for one in sockets or []], copies)
    except OSError as error:
        raise Problem(f"{error.filename or claims} cannot be written: {error.strerror}.", FAILED) from None


def _name(text: str) -> str:
    if text and not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,50}", text):
        raise Problem(
            f"“{text[:40]}” is no name here; it has up to 51 small letters, digits, dots and dashes.", USAGE
        )
    return text


def _pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts or []]
    if wrong := [text for text, sign, value in pairs if not (text and sign and value)]:
        raise Problem(f"“{wrong[0][:40]}” says nothing; write {option} SERVER=VALUE.", USAGE)
    return {name: value for name, _, value in pairs}


@app.command()
def controller(
    share: Share = 0.02,
    round_trip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SERVER=CLASS",
            help="Class of the way to GPU servers whose names begin so, such as gpu=near; may be repeated.",
        ),
    ] = None,
    driver_version: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SERVER=VERSION",
            help="NVIDIA's driver on GPU servers whose names begin so, such as gpu=570.86.10; may be repeated.",
        ),
    ] = None,
    cluster: Cluster = "",
    every: Every = 5.0,
    kubeconfig: Kubeconfig = None,
    pool: Pool = None,
    state: State = None,
    log_level: LogLevel = Level.INFO,
    log_format: LogFormat = Form.TEXT,
) -> None:
    """Show the pool's devices to a cluster, and hold a lease for each claim that is allocated there.

    It runs in the foreground, once for a cluster; a second one beside it does no harm.  The pool's file is of
    “gpukernel token create NAME --scope kubernetes --file FILE”, the devices those of “gpukernel server delegate DEVICE --to kubernetes”.

    \b
    Examples:
      gpukernel kubernetes controller --pool /etc/gpukernel/kubernetes.pool
      gpukernel kubernetes controller --pool kubernetes.pool --share 0.05 --round-trip gpu=near --kubeconfig admin.conf
    """
    _needs_lightkube()
    from gpukernel.common import logs
    from gpukernel.engines.kubernetes.controller import Controller
    from gpukernel.engines.kubernetes.publisher import Publisher
    from gpukernel.engines.kubernetes.slices import SliceSettings

    settings = SliceSettings(
        share, _pairs("--round-trip", round_trip), _pairs("--driver-version", driver_version)
    )
    cluster = _name(cluster)
    logs.configure(log_level, log_format)

    async def work() -> None:
        async with _clients(kubeconfig, pool, state) as (api, client), asyncio.TaskGroup() as group:
            group.create_task(Publisher(api, client, settings).run(every))
            group.create_task(Controller(api, client, cluster).run(every))

    _run(work())


@app.command()
def classes(
    count: Annotated[int, typer.Option("--max-count", min=1, max=32, help="Devices of one claim.")] = 1,
    memory: Annotated[
        str, typer.Option("--max-memory", metavar="SIZE", help="Memory of each of them, such as 4Gi.")
    ] = "4Gi",
    total: Annotated[
        str, typer.Option("--max-total-memory", metavar="SIZE", help="Memory of all of them. Else the same.")
    ] = "",
    pool: Pool = None,
    state: State = None,
) -> None:
    """Print DeviceClasses of the pool's models as YAML: one for all, and one each with a name for “limits:”.

    The bounds are for the admission policies of deploy/kubernetes/admission.yaml; without these they say nothing.

    \b
    Examples:
      gpukernel kubernetes classes --pool kubernetes.pool | kubectl apply -f -
      gpukernel kubernetes classes --max-count 2 --max-memory 4Gi --max-total-memory 6Gi --pool kubernetes.pool
    """
    import yaml

    from gpukernel.cli.tables import ask_pool
    from gpukernel.engines.kubernetes.classes import ClassLimits, class_manifests
    from gpukernel.engines.kubernetes.names import model_name
    from gpukernel.jupyter.offers import short_model

    try:
        limits = ClassLimits(count, memory, total or memory)
    except ValueError as error:
        raise Problem(str(error), USAGE) from None
    models = [
        (short_model(device.name), model_name(device.name))
        for device in ask_pool(pool, state, lambda client: client.devices())
        if device.decided_by == "kubernetes"
    ]
    if not models:
        raise Problem(
            "Kubernetes decides over no device of the pool; see “gpukernel server delegate”.", NOT_THERE
        )
    print(yaml.safe_dump_all(class_manifests(models, limits), sort_keys=False), end="")


@app.command()
def node(
    plugins: Annotated[Path, typer.Option(metavar="DIR", help="The kubelet's folder of plugins.")] = Path(
        "/var/lib/kubelet/plugins"
    ),
    registry: Annotated[
        Path, typer.Option(metavar="DIR", help="The kubelet's folder in which it finds plugins.")
    ] = Path("/var/lib/kubelet/plugins_registry"),
    cdi: Cdi = Path("/var/run/cdi"),
    claims: Claims = Path("/run/gpukernel-claims"),
    libraries: Libraries = None,
    sockets: Sockets = None,
    wait: Annotated[
        float,
        typer.Option(min=0, max=300, metavar="SECONDS", help="How long a call waits for a claim's slice."),
    ] = 30.0,
    cluster: Cluster = "",
    every: Every = 5.0,
    kubeconfig: Kubeconfig = None,
    pool: Pool = None,
    state: State = None,
    log_level: LogLevel = Level.INFO,
    log_format: LogFormat = Form.TEXT,
) -> None:
    """Prepare claims on this node, as its kubelet asks: a plugin of the kubelet, in the foreground, as root.

    \b
    Examples:
      gpukernel kubernetes node --pool /etc/gpukernel/kubernetes.pool
      gpukernel kubernetes node --pool kubernetes.pool --libraries /var/lib/gpukernel/libraries
    """
    _needs_lightkube()
    from gpukernel.common import logs
    from gpukernel.engines.kubernetes.health import DeviceHealth
    from gpukernel.engines.kubernetes.kubelet import KubeletPlugin
    from gpukernel.engines.kubernetes.preparing import Preparing

    cluster = _name(cluster)
    files = _files(claims, cdi, libraries, sockets)
    logs.configure(log_level, log_format)

    async def work() -> None:
        async with _clients(kubeconfig, pool, state) as (api, client):
            preparing = Preparing(api, client, files, cluster, wait)
            await KubeletPlugin(preparing, DeviceHealth(client), plugins, registry).run(every)

    _run(work())


@app.command()
def hours(
    namespace: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The agents' namespace. Else the one of the kubeconfig, or of this pod."
        ),
    ] = "",
    every: Annotated[
        float, typer.Option(min=0.1, max=60, metavar="SECONDS", help="Between two looks at the agents.")
    ] = 15.0,
    kubeconfig: Kubeconfig = None,
    log_level: LogLevel = Level.INFO,
    log_format: LogFormat = Form.TEXT,
) -> None:
    """Let agents' pods lend GPUs to the pool in their hours only: DaemonSets and Deployments with the annotation gpukernel.io/schedule.

    Pods are told to stop their grace period before the hours end: holders of slices have that time, and the GPUs are the cluster's at the end.
    The annotation gpukernel.io/schedule-zone names the time zone of the hours.

    \b
    Examples:
      kubectl annotate daemonset gpukernel-agent-v100 'gpukernel.io/schedule=Mo-Fr 8-18' gpukernel.io/schedule-zone=Europe/Berlin
      gpukernel kubernetes hours --namespace gpukernel
    """
    _needs_lightkube()
    from gpukernel.common import logs
    from gpukernel.engines.kubernetes.agent_hours import AgentHours

    namespace = _name(namespace)
    logs.configure(log_level, log_format)

    async def work() -> None:
        async with _cluster(kubeconfig) as api:
            await AgentHours(api, namespace or api.namespace).run(every)

    _run(work())


@app.command("device-plugin")
def device_plugin(
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="Devices whose model contains it, such as v100.")
    ],
    share: Share = 0.02,
    slots: Annotated[int, typer.Option(min=1, max=1000, help="Slots that this node counts.")] = 10,
    node_name: Annotated[
        str, typer.Option("--node", metavar="NAME", help="The node's name. Else NODE_NAME, else the host's.")
    ] = "",
    plugins: Annotated[
        Path, typer.Option(metavar="DIR", help="The kubelet's folder of device plugins.")
    ] = Path("/var/lib/kubelet/device-plugins"),
    pod_resources: Annotated[
        Path, typer.Option(metavar="SOCKET", help="The kubelet's socket that tells what containers have.")
    ] = Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
    cdi: Cdi = Path("/var/run/cdi"),
    claims: Claims = Path("/run/gpukernel-slots"),
    libraries: Libraries = None,
    sockets: Sockets = None,
    cluster: Cluster = "",
    every: Every = 5.0,
    pool: Pool = None,
    state: State = None,
    log_level: LogLevel = Level.INFO,
    log_format: LogFormat = Form.TEXT,
) -> None:
    """Count slices on this node as a device plugin, for clusters before 1.34: “limits: gpukernel.io/v100-slice: 1”.

    A pod for which the pool has no room fails when it starts: let all nodes together have no more slots than the devices have room.

    \b
    Example:
      gpukernel kubernetes device-plugin --model v100 --share 0.05 --slots 5 --pool /etc/gpukernel/kubernetes.pool
    """
    from gpukernel.client.engines import EngineClient
    from gpukernel.common import logs
    from gpukernel.common.address import resolve_address
    from gpukernel.engines.kubernetes.device_plugin import DevicePlugin
    from gpukernel.engines.kubernetes.slots import Slots

    if not (word := _name(model.lower())):
        raise Problem("--model names no model; write a part of the device's name, such as v100.", USAGE)
    cluster = _name(cluster)
    name = _name(node_name or os.environ.get("NODE_NAME") or platform.node().lower())
    files = _files(claims, cdi, libraries, sockets)
    logs.configure(log_level, log_format)

    async def work() -> None:
        async with EngineClient(resolve_address(pool, state)) as client:
            client.engine = "kubernetes"
            known = Slots(client, files, name, word, share, slots, cluster)
            while True:  # again after each start of the kubelet
                await DevicePlugin(known, f"gpukernel.io/{word}-slice", plugins, pod_resources).run(every)

    _run(work())
