"""Somebody who executes code of their own inside a worker reads the server's tokens and other leases' data, opens connections, starts programs, ends siblings and fills the machine."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpukernel.agent.confinement import mps_directory
from tests.attacks.hostile_worker import FAULT, Door, hostile_native, may_have_accounts, on_a_slice, rungs_of
from tests.conftest import Pool

MIB = 2**20
AT_FDCWD = -100


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A server whose workers have the door; its state lies where every account may pass."""
    folder = tmp_path_factory.mktemp("hostile")
    for path in (folder, *folder.parents[:2]):
        path.chmod(0o755)
    pool = Pool("v100:1", folder / "state", tcp_host="127.0.0.1")
    pool.environment["GPUKERNEL_NATIVE_DIR"] = str(hostile_native(folder))
    with pool:
        yield pool


@pytest.fixture(scope="module")
def rungs(server: Pool) -> frozenset[str]:
    return rungs_of(server)


@pytest.fixture(autouse=True)
def _skip_where_a_rung_is_missing(request: pytest.FixtureRequest, rungs: frozenset[str]) -> None:
    mark = request.node.get_closest_marker("needs")
    if mark is not None and (missing := set(mark.args) - rungs):
        pytest.skip(f"this machine lets a worker have no {', '.join(sorted(missing))}")


@pytest.fixture(scope="module")
def door(server: Pool) -> Iterator[Door]:
    with on_a_slice(server) as one:
        yield one


@pytest.fixture(scope="module")
def sibling(server: Pool) -> Iterator[Door]:
    with on_a_slice(server) as one:
        yield one


def test_what_the_kernel_offers_is_in_use(server: Pool, rungs: frozenset[str]) -> None:
    landlock_create_ruleset, version = 444, 1
    kernel = ctypes.CDLL(None, use_errno=True)
    offers = {"no-new-privileges", "limits"}
    if kernel.syscall(landlock_create_ruleset, None, 0, version) > 0:
        offers.add("landlock")
    if "Seccomp_filters" in Path("/proc/self/status").read_text():
        offers.add("system-calls")
    if may_have_accounts(server.state, Path(server.environment["GPUKERNEL_NATIVE_DIR"]) / "worker"):
        offers.add("account")
    assert rungs >= offers, server.gpukernel("health").stdout


@pytest.mark.needs("landlock")
def test_it_reads_no_secret_of_the_pool_or_the_agent(door: Door, server: Pool) -> None:
    secrets = [path for path in server.state.rglob("*") if path.is_file()]
    assert any(path.suffix == ".db" for path in secrets)
    shared = {
        server.state / "images/salt",
        server.state / "time-slicing/0",
    }  # what every program is told, or shares
    got = {str(path): door.act(f"cat {path}") for path in secrets if path not in shared}
    assert not {path: str(outcome) for path, outcome in got.items() if not outcome.refused}


@pytest.mark.needs("landlock")
@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/etc/shadow", "/proc/1/environ", "/proc/self/environ", "/root", "/home"]
)
def test_it_reads_nothing_of_the_machine(door: Door, path: str) -> None:
    outcome = door.act(f"cat {path}")
    assert outcome.refused, str(outcome)


@pytest.mark.needs("landlock", "system-calls")
def test_it_writes_nowhere(door: Door, server: Pool) -> None:
    made = 0o101  # O_WRONLY | O_CREAT
    workers = next((server.state / "workers").iterdir())
    for folder in (workers, server.state, server.state / "containers", Path("/tmp"), Path("/dev/shm")):
        for outcome in (
            door.call("open", folder / "hostile", made, 0o600),
            door.call("mkdir", folder / "hostile-folder", 0o700),
            door.call("symlink", "/etc/passwd", folder / "hostile-link"),
        ):
            assert outcome.refused, (folder, str(outcome))
    assert door.call("rename", workers / "worker.log", workers / "other.log").refused
    assert door.call("unlink", workers / "control.sock").refused
    assert door.call("chmod", workers / "control.sock", 0o666).refused


@pytest.mark.needs("system-calls")
def test_it_reaches_nobody_over_any_network(door: Door, server: Pool) -> None:
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
            outcome = door.call("socket", int(family), int(kind), 0)
            assert outcome.refused, (family, kind, str(outcome))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        place = f"x0200{port:04x}7f000001" + "00" * 8
        for descriptor in range(3, 40):  # those that it has, and the listeners among them
            assert door.call("connect", descriptor, place, 16).refused
            assert door.call("bind", descriptor, place, 16).refused
            assert door.call("listen", descriptor, 5).refused


@pytest.mark.needs("system-calls")
def test_it_starts_no_process(door: Door) -> None:
    assert door.call("fork").refused
    assert door.act("shell id").refused


@pytest.mark.needs("landlock", "system-calls")
def test_it_executes_no_other_program(server: Pool) -> None:
    with on_a_slice(server) as one:
        outcome = one.deadly("syscall 59 /bin/echo 0 0")
        assert outcome is not None, "another program ran in the worker's place"
        assert outcome.refused, str(outcome)


@pytest.mark.needs("landlock", "system-calls")
def test_it_touches_no_other_process(door: Door, sibling: Door) -> None:
    other = sibling.pid
    seize = 0x4206
    for outcome in (
        door.call("ptrace", seize, other, 0, 0),
        door.call("process_vm_readv", other, 0, 0, 0, 0, 0),
        door.call("pidfd_open", other, 0),
        door.call("kill", other, 9),
        door.act(f"cat /proc/{other}/maps"),
        door.act(f"cat /proc/{other}/environ"),
        door.act(f"cat /proc/{other}/cmdline"),
    ):
        assert outcome.refused, str(outcome)
    assert sibling.pid == other


@pytest.mark.needs("system-calls")
def test_it_makes_no_process_less_urgent_and_no_thread_more(door: Door, sibling: Door) -> None:
    """A thread may say of itself that it is in no hurry.  Naming the worker's own process stands for a sibling of the same account."""
    batch, idle, fifo, process = 3, 5, 1, 0
    assert door.call("sched_setscheduler", 0, batch, "@").result == 0
    for outcome in (
        *(door.call("sched_setscheduler", pid, batch, "@") for pid in (sibling.pid, door.pid, os.getpid())),
        *(door.call("sched_setscheduler", 0, policy, "@") for policy in (idle, fifo, 0)),
        door.call("sched_setattr", sibling.pid, "@", 0),
        door.call("sched_setparam", sibling.pid, "@"),
        *(door.call("setpriority", process, pid, n) for pid, n in ((sibling.pid, 19), (0, 19), (0, -20))),
    ):
        assert outcome.refused, str(outcome)


@pytest.mark.needs("system-calls")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("unshare", [0x10000000]),
        ("mount", ["none", "/mnt", "tmpfs", 0, 0]),
        ("bpf", [0, "@", 64]),
        ("userfaultfd", [0]),
        ("io_uring_setup", [8, "@"]),
    ],
)
def test_it_asks_the_kernel_for_nothing_that_it_does_not_need(
    door: Door, name: str, words: list[object]
) -> None:
    outcome = door.call(name, *words)
    assert outcome.refused, str(outcome)


@pytest.mark.needs("landlock", "system-calls")
def test_the_worker_that_began_anew_after_a_fault_is_confined_as_before(server: Pool) -> None:
    with on_a_slice(server, before=FAULT) as one:
        assert one.act("count").result == 1  # the fault's program had counted one: this is another image
        assert one.call("socket", 2, 1, 0).refused
        assert one.act("cat /etc/passwd").refused
        assert one.act("shell id").refused


def bounds_of(pid: int) -> dict[str, str]:
    """Return what the groups of a process say, of version 1 or 2."""
    found: dict[str, str] = {}
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, own = line.split(":", 2)
        places = [Path("/sys/fs/cgroup", name) for name in controllers.split(",")]
        for place in [*places, Path("/sys/fs/cgroup")]:
            for name in ("cpu.weight", "cpu.shares", "memory.max", "memory.limit_in_bytes", "pids.max"):
                if (file := place / own.strip("/") / name).exists():
                    found.setdefault(name, file.read_text().strip())
    return found


@pytest.mark.needs("cgroup")
def test_its_groups_weigh_as_its_share_and_bound_its_memory_and_threads(server: Pool) -> None:
    with on_a_slice(server, "-p", "0.05") as small, on_a_slice(server, "-p", "0.2") as large:
        found = [bounds_of(one.pid) for one in (small, large)]
    weights = [int(one.get("cpu.weight") or one["cpu.shares"]) for one in found]
    assert 3.8 <= weights[1] / weights[0] <= 4.2
    for one in found:
        assert int(one.get("memory.max") or one["memory.limit_in_bytes"]) < 8 << 30
        assert 0 < int(one["pids.max"]) < 5000


@pytest.mark.needs("cgroup")
def test_threads_without_end_end(server: Pool) -> None:
    with on_a_slice(server) as one:
        outcome = one.act("threads 20000")
        assert 0 <= outcome.result < 5000, str(outcome)


@pytest.mark.needs("cgroup")
def test_memory_without_end_ends_the_worker_and_nobody_else(server: Pool, sibling: Door) -> None:
    before = sibling.pid
    with on_a_slice(server) as one:
        outcome = one.deadly(f"fill {6 << 30}")
        assert outcome is None or outcome.result < 6 << 30, str(outcome)
    assert sibling.pid == before


def test_a_folder_of_anybodys_is_no_mps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Else whoever makes ``/tmp/nvidia-mps`` on a GPU server takes rungs from its workers."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert mps_directory() is None
    (tmp_path / "control").touch()
    assert mps_directory() == tmp_path
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    if os.getuid() == 0:
        os.chown(tmp_path / "control", 12345, 12345)
        assert mps_directory() is None
        os.chown(tmp_path / "control", 0, 0)
        os.chown(link, 12345, 12345, follow_symlinks=False)
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(link))
        assert mps_directory() is None
        os.chown(tmp_path, 12345, 12345)
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
        assert mps_directory() is None
