"""Workers, started, adopted and asked: the processes that own one lease's CUDA context on one device.

A worker outlives the agent that started it.  Everything needed to find it again lies in its directory:
``data.sock`` (programs connect here and prove that they know the lease's secret), ``control.sock`` (mode 0600,
for the agent) and ``worker.log``.

On ``control.sock`` a request is one line of text and its answer one line of JSON: ``status [UNTIL]``, ``limit BYTES
WEIGHT``, ``interrupt``, ``stop REASON``.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpukernel import native

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

__all__ = [
    "HOST_MEMORY",
    "DeviceDescription",
    "WorkerHandle",
    "WorkerStartFailed",
    "WorkerStatus",
    "adopt_worker",
    "list_devices",
    "start_worker",
]

START_SECONDS = 30.0
CONTROL_SECONDS = 10.0

HOST_MEMORY = 2**30
"""Bytes of the host's memory that the programs of one lease may make its worker take, where nobody says otherwise."""


class WorkerStartFailed(Exception):
    """An error: a worker could not be started; the text is a sentence that says why."""


class WorkerGone(Exception):
    """An error: the worker no longer answers on its control socket."""


@dataclass(frozen=True)
class DeviceDescription:
    """One device of a CUDA library; memory in bytes."""

    index: int
    name: str
    uuid: str
    memory_bytes: int
    compute_capability: str
    multiprocessors: int


@dataclass(frozen=True)
class WorkerStatus:
    """A worker's own account; memory in bytes, times in seconds."""

    pid: int
    lease: str
    device: int
    memory_limit_bytes: int
    memory_used_bytes: int
    memory_peak_bytes: int
    cuda_calls: int
    launches: int
    gpu_seconds: float
    turn_seconds: float
    connections: int
    idle_seconds: float
    endpoints: tuple[str, ...]
    host_memory_limit_bytes: int = 0
    host_memory_used_bytes: int = 0


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda value: int(_count(value)),
    "float": lambda value: float(_count(value)),
    "str": lambda value: _text(value),
    "tuple[str, ...]": lambda value: tuple(_text(each) for each in value),
}


def _count(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**63:
        raise ValueError(f"{str(value)[:40]!r} is no count")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 4096:
        raise ValueError(f"{str(value)[:40]!r} is no text")
    return value


def _from_json(kind: type[T], data: object) -> T:
    """Return `data` as a `kind`.  What a worker says is checked: its programs may have taken it over.

    Raises
    ------
    ValueError
        When a field is missing that has no default, is of another type, negative or too large.
    """
    if not isinstance(data, dict):
        raise ValueError("it is no object")
    try:
        values = {
            field.name: _READERS[str(field.type)](data[field.name])
            for field in dataclasses.fields(kind)
            if field.name in data
            or field.default is dataclasses.MISSING  # a worker of an older version says less
        }
    except (KeyError, TypeError) as error:
        raise ValueError(f"{error} is missing, or no list") from None
    return kind(**values)


def list_devices(library: Path | str, env: Mapping[str, str] | None = None) -> list[DeviceDescription]:
    """Return the devices that the CUDA driver library `library` shows, asked for in a process of their own.

    Raises
    ------
    WorkerStartFailed
        When the library cannot be loaded or answers with an error.
    """
    answer = subprocess.run(
        [native.worker_executable(), "--list-devices", "--library", str(library)],
        env=None if env is None else dict(env),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if answer.returncode:
        reason = answer.stderr.strip() or answer.stdout.strip()
        raise WorkerStartFailed(f"the devices of {library} could not be listed: {reason}")
    return [_from_json(DeviceDescription, entry) for entry in json.loads(answer.stdout)]


class WorkerHandle:
    """A living worker: asked, limited, stopped, and waited for."""

    def __init__(self, directory: Path, pid: int, pidfd: int, status: WorkerStatus) -> None:
        self.directory = directory
        self.lease_id = status.lease
        self.device = status.device
        self.memory_limit = status.memory_limit_bytes
        self.pid = pid
        self.endpoints = _own_endpoints(directory, status.endpoints)
        self._pidfd = pidfd
        self._control: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._lock = asyncio.Lock()
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, self._process_ended)

    def _process_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        with contextlib.suppress(ChildProcessError, OSError):
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)  # reap it where it is our child
        os.close(self._pidfd)
        self._ended.set()

    async def _ask(self, line: str) -> dict[str, Any]:
        async with self._lock:
            # A worker that began anew after a fault dropped its connections: then a second try finds it.
            for last_try in (self._control is None, True):
                try:
                    async with asyncio.timeout(CONTROL_SECONDS):
                        if self._control is None:
                            path = str(self.directory / "control.sock")
                            self._control = await asyncio.open_unix_connection(path)
                        reader, writer = self._control
                        writer.write(" ".join(line.split()).encode() + b"\n")
                        await writer.drain()
                        answer = await reader.readline()
                    if answer.endswith(b"\n"):
                        return dict(json.loads(answer))
                    error = "it has gone"
                except (OSError, TimeoutError) as problem:
                    error = str(problem) or "no answer in time"
                except (ValueError, TypeError, RecursionError) as problem:  # too long a line, or no JSON
                    error = str(problem)[:200]
                except BaseException:  # cancelled: the answer to come is nobody's
                    self._close()
                    raise
                self._close()
                if last_try:
                    break
        raise WorkerGone(f"the worker of lease {self.lease_id} does not answer: {error}")

    def _close(self) -> None:
        if self._control is not None:
            self._control[1].close()
            self._control = None

    async def status(self, until: float | None = None) -> WorkerStatus:
        """Ask the worker for its figures; raises `WorkerGone` where it does not answer, or with nonsense.

        `until`: it ends by itself then, in seconds since the machine's start, unless it is told of a later end.
        """
        answer = await self._ask("status" if until is None else f"status {until:.3f}")
        try:
            return _from_json(WorkerStatus, answer)
        except ValueError as error:
            raise WorkerGone(f"the worker of lease {self.lease_id} answers with nonsense: {error}") from None

    async def limit(self, memory_bytes: int, weight: float) -> None:
        """Change the cap in bytes and the compute weight; raises `ValueError` where more is already allocated."""
        answer = await self._ask(f"limit {memory_bytes} {weight}")
        if not answer.get("ok"):
            raise ValueError(str(answer.get("error")))
        self.memory_limit = memory_bytes

    async def interrupt(self) -> None:
        """End work that is not done a second from now, and with it the context of the programs; the lease stays."""
        await self._ask("interrupt")

    async def stop(self, reason: str) -> None:
        """Tell the connected programs `reason` and end the worker; `wait` says when it has ended."""
        with contextlib.suppress(WorkerGone):
            await self._ask(f"stop {reason}")
        self._close()

    async def wait(self) -> None:
        """Wait until the process has ended."""
        await self._ended.wait()

    @property
    def ended(self) -> bool:
        """Return whether the process has ended."""
        return self._ended.is_set()

    def kill(self) -> None:
        """End the process at once."""
        if not self._ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


def _spawn(command: list[str], env: Mapping[str, str] | None, log_path: Path) -> subprocess.Popen[bytes]:
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            command,
            env=None if env is None else dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)


async def start_worker(
    *,
    library: Path | str,
    device: int,
    memory_bytes: int,
    weight: float,
    lease_id: str,
    secret: str,
    directory: Path,
    tcp_host: str | None = None,
    env: Mapping[str, str] | None = None,
    orphan_seconds: float = 120.0,
    time_slicing: Path | None = None,
    images: Path | None = None,
    watchdog_seconds: float = 0.0,
    host_memory: int = HOST_MEMORY,
    until: float | None = None,
    tls: bool = False,
    before: Sequence[str] = (),
    confinement: Sequence[str] = (),
) -> WorkerHandle:
    """Start a worker and return once it listens.

    Parameters
    ----------
    library
        The ``libcuda.so.1`` that it loads: NVIDIA's or the simulated GPU's.
    device
        Index of the device in that library.
    memory_bytes
        The cap on what the lease's programs may allocate together.
    weight
        Share of contended compute.
    secret
        The lease's secret, hexadecimal; given over standard input, never in the command line.
    directory
        An existing directory for its sockets and log, whose path has fewer than about 90 characters.
    tcp_host
        Also listen on an ephemeral TCP port of this address.
    orphan_seconds
        It ends by itself after this time without an agent and without programs.
    time_slicing
        The file by which the workers of one device share its time; None: it shares with nobody.
    images
        The directory (mode 0700) in which the workers of one server keep module images; None: they keep none.
    watchdog_seconds
        Work that does not end within this time is ended; 0: never.
    host_memory
        Bytes of this machine's memory that the lease's programs may make the worker take, beside a simulated device's.
    until
        As `WorkerHandle.status` has it (``CLOCK_BOOTTIME``); None: it does not end by itself.
    tls
        Whoever comes over TCP must speak TLS, and the endpoint begins with ``tls:``.
    before
        Words before the command, of a program that executes the worker in its place (``systemd-run --scope``).
    confinement
        The worker's options ``--confine``, ``--account`` and ``--cgroup``, as `gpukernel.agent.confinement` makes them.

    Raises
    ------
    WorkerStartFailed
        With the worker's own sentence.
    """
    command = [*before, str(native.worker_executable()), "--library", str(library), "--device", str(device)]
    command += ["--memory", str(memory_bytes), "--weight", str(weight), "--lease", lease_id]
    command += ["--directory", str(directory), "--orphan-seconds", str(orphan_seconds)]
    command += ["--host-memory", str(host_memory)]
    command += confinement
    choices = {
        "--time-slicing": time_slicing,
        "--images": images,
        "--watchdog-seconds": watchdog_seconds or None,
        "--until": None if until is None else f"{until:.3f}",
        "--tcp": None if tcp_host is None else f"{tcp_host}:0",
    }
    for option, value in choices.items():
        command += [] if value is None else [option, str(value)]
    command += ["--tls"] if tls else []
    process = _spawn(command, _with_libraries(env), directory / "worker.log")
    pidfd = os.pidfd_open(process.pid)
    try:
        await _until_ready(process, lease_id, secret)
        _, status = await _status_of(directory)
    except BaseException as error:
        process.kill()
        process.wait()
        os.close(pidfd)
        if isinstance(error, TimeoutError):
            raise WorkerStartFailed(
                f"the worker of lease {lease_id} was not ready within {START_SECONDS:.0f} s"
            ) from error
        if isinstance(error, OSError | ValueError):
            raise WorkerStartFailed(f"the worker of lease {lease_id} does not answer: {error}") from None
        raise
    process.returncode = 0  # reaped through its pidfd: Popen must not wait for it
    return WorkerHandle(directory, process.pid, pidfd, status)


def _with_libraries(env: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return `env`, or this process's, with the places of what math libraries need, where nobody says otherwise."""
    environment = dict(os.environ if env is None else env)
    if openblas := native.openblas_library():
        environment.setdefault("GPUKERNEL_OPENBLAS", str(openblas))
    if folders := native.nvidia_library_folders():
        environment.setdefault("GPUKERNEL_LIBRARIES", os.pathsep.join(map(str, folders)))
    return environment


async def _until_ready(process: subprocess.Popen[bytes], lease_id: str, secret: str) -> None:
    """Give a worker its secret, and return once it says that it is ready."""
    assert process.stdin is not None
    assert process.stdout is not None
    reader = asyncio.StreamReader()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(secret.encode() + b"\n")
        process.stdin.close()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), process.stdout
    )
    try:
        async with asyncio.timeout(START_SECONDS):
            line = await reader.readline()
    finally:
        transport.close()
    ready = json.loads(line) if line else {"ready": False, "error": "it ended before it was ready"}
    if not ready["ready"]:
        raise WorkerStartFailed(f"the worker of lease {lease_id} did not start: {ready['error']}")


def _own_endpoints(directory: Path, said: Sequence[str]) -> tuple[str, ...]:
    """Return those of a worker's endpoints that can be its own: its socket, and ports.  Others are links and files of somebody else."""
    own = f"unix:{directory / 'data.sock'}"
    return tuple(each for each in said if each == own or each.startswith(("tcp:", "tls:")))


async def _status_of(directory: Path) -> tuple[int, WorkerStatus]:
    """Return the process id of who listens, by the system's word and not by the worker's, and what it says of itself."""
    reader, writer = await asyncio.open_unix_connection(str(directory / "control.sock"))
    try:
        peer = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        async with asyncio.timeout(CONTROL_SECONDS):
            writer.write(b"status\n")
            await writer.drain()
            status = _from_json(WorkerStatus, json.loads(await reader.readline()))
        return struct.unpack("iII", peer)[0], status
    finally:
        writer.close()


async def adopt_worker(directory: Path) -> WorkerHandle | None:
    """Return the living worker of `directory`, started by an earlier agent, or None where none lives there."""
    try:
        pid, _ = await _status_of(directory)
        pidfd = os.pidfd_open(pid)
    except (OSError, TimeoutError, ValueError):
        return None
    try:
        again, status = await _status_of(directory)
        if again == pid:
            return WorkerHandle(directory, pid, pidfd, status)
    except (OSError, TimeoutError, ValueError):
        pass
    os.close(pidfd)
    return None
