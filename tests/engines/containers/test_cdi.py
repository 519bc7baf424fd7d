"""Containers of any image get slices by ``--device gpukernel.io/slice=…``, with a real podman; nothing of gpukernel is in them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import Pool, eventually
from tests.engines.containers.podman import SLICE, Podman, root_filesystem

WHOLE = "gpukernel.io/slice=v100-1"
MAPPED = 1_900_000_000
"""The first of this machine's accounts, nobody's, that those of a container in a user namespace are."""
LOOK = """
import ctypes, os
cuda = ctypes.CDLL("libcuda.so.1")
size = ctypes.c_size_t()
print(cuda.cuInit(0), cuda.cuDeviceTotalMem_v2(ctypes.byref(size), 0), size.value >> 20, os.getuid())
"""


def looked(podman: Podman, root: Path, *options: str) -> str:
    done = podman.start(SLICE, root, "/usr/bin/python3", "-c", LOOK, options=("--rm", *options))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_container_sees_its_share_as_the_whole_device_and_gives_it_back(
    podman: Podman, pool: Pool, root: Path
) -> None:
    assert looked(podman, root) == "0 0 655 0\n"
    assert pool.promised() == 0  # podman has waited for that


def test_a_program_of_another_account_reads_its_lease_and_nobody_else_does(
    podman: Podman, pool: Pool, root: Path
) -> None:
    assert looked(podman, root, "--user", "1234:77") == "0 0 655 1234\n"
    listed = podman.start(
        SLICE,
        root,
        "/usr/bin/stat",
        "-c",
        "%a %u",
        "/run/gpukernel/lease",
        options=("--rm", "--user", "1234"),
    )
    assert listed.stdout == "600 1234\n"


@pytest.mark.parametrize("file", ["pool", "asked_pool"])
def test_a_container_in_a_user_namespace_of_its_own_has_a_slice(
    podman: Podman, request: pytest.FixtureRequest, file: str
) -> None:
    # Its file system in memory knows no root of this machine.
    pool: Pool = request.getfixturevalue(file)
    home = Path(
        tempfile.mkdtemp(prefix="mapped-", dir="/var/tmp")
    )  # the test's own folder is closed for other accounts
    try:
        home.chmod(0o711)
        root = root_filesystem(home / "image")
        for one in (root, *root.rglob("*")):
            os.chown(one, MAPPED, MAPPED, follow_symlinks=False)
        mapped = f"0:{MAPPED}:65536"
        namespace = ("--uidmap", mapped, "--gidmap", mapped)
        assert looked(podman, root, *namespace) == "0 0 655 0\n"
        assert looked(podman, root, *namespace, "--user", "1234:77") == "0 0 655 1234\n"
    finally:
        shutil.rmtree(home)
    assert len(pool.leases(ended=True)[0]) == 2
    assert pool.promised() == 0


@pytest.mark.parametrize("file", ["pool", "asked_pool"])
def test_a_container_with_two_devices_is_told_that_it_has_one_slice(
    podman: Podman, request: pytest.FixtureRequest, root: Path, file: str
) -> None:
    pool: Pool = request.getfixturevalue(file)
    other = ("--device", SLICE.replace("0.02", "0.05"))
    done = podman.start(SLICE, root, "/bin/true", options=("--rm", *other))
    assert done.returncode != 0
    assert "a container has one slice" in done.stderr, done.stderr
    eventually(lambda: pool.promised() == 0)


def test_two_containers_have_two_slices_of_one_device(
    podman: Podman, pool: Pool, root: Path, tmp_path: Path
) -> None:
    other = root_filesystem(tmp_path / "other")
    with ThreadPoolExecutor() as threads:
        both = list(threads.map(lambda one: looked(podman, one), (root, other)))
    assert both == ["0 0 655 0\n"] * 2
    assert len({lease.id for lease in pool.leases(ended=True)[0]}) == 2


def test_a_container_that_is_killed_frees_its_slice(podman: Podman, pool: Pool, root: Path) -> None:
    assert podman.start(SLICE, root, "/bin/sleep", "600", options=("-d", "--name", "killed")).returncode == 0
    assert len(pool.live()) == 1
    os.kill(podman.process("killed"), signal.SIGKILL)
    eventually(lambda: pool.promised() == 0, 30)
    podman("rm", "--force", "killed")


def test_a_keeper_that_is_killed_costs_the_slice_and_not_the_pool(
    podman: Podman, pool: Pool, root: Path
) -> None:
    assert podman.start(SLICE, root, "/bin/sleep", "600", options=("-d", "--name", "kept")).returncode == 0
    (lease,) = pool.live()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            mine = f"GPUKERNEL_POOL={pool.address}".encode() in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mine and b"gpukernel.engines.containers.keeper" in words:
            os.kill(int(folder.name), signal.SIGKILL)
    eventually(lambda: pool.promised() == 0, 60)  # by expiry: nobody renews
    assert lease.id in {one.id for one in pool.leases(ended=True)[0]}
    podman("rm", "--force", "--time", "0", "kept")


def test_a_container_that_finds_no_room_does_not_start_and_the_reason_is_said(
    podman: Podman, pool: Pool, root: Path, tmp_path: Path
) -> None:
    assert podman.start(WHOLE, root, "/bin/sleep", "600", options=("-d", "--name", "first")).returncode == 0
    second = podman.start(WHOLE, root_filesystem(tmp_path / "other"), "/bin/true", options=("--rm",))
    assert second.returncode != 0
    assert "gpukernel: " in second.stderr, second.stderr
    assert "free" in second.stderr, second.stderr
    assert len(pool.live()) == 1
    assert pool.leases()[1] == []
    podman("rm", "--force", "--time", "0", "first")
    eventually(lambda: pool.promised() == 0)


def test_an_image_with_musl_or_an_old_glibc_is_told_so(
    podman: Podman, asked_pool: Pool, tmp_path: Path
) -> None:
    musl, old, empty = (tmp_path / name for name in ("musl", "old", "empty"))
    for root in (musl, old, empty):
        for name in ("lib64", "lib", "proc", "sys", "dev", "run", "etc"):
            (root / name).mkdir(parents=True)
    (musl / "lib" / "ld-musl-x86_64.so.1").touch()
    (old / "lib64" / "ld-linux-x86-64.so.2").touch()
    (old / "lib64" / "libc.so.6").write_bytes(b"GNU C Library stable release version 2.17.\n")
    for root, said in (
        (musl, "musl in place of glibc"),
        (old, "has glibc 2.17"),
        (empty, "no dynamic linker of glibc"),
    ):
        done = podman("run", "--rm", "--network", "none", "--device", SLICE, "--rootfs", str(root), "/bin/sh")
        assert done.returncode != 0
        assert said in done.stderr, done.stderr
    assert asked_pool.leases(ended=True) == ([], [])


def test_links_of_an_image_do_not_lead_the_secret_out_of_it(
    podman: Podman, pool: Pool, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "run").rmdir()
    (root / "run").symlink_to(f"../../../../../../../../..{outside}")
    assert looked(podman, root) == "0 0 655 0\n"
    assert list(outside.iterdir()) == []


def test_a_hostile_container_sees_sockets_and_no_file_of_the_pool(
    podman: Podman, pool: Pool, root: Path
) -> None:
    folder = Path(pool.address.removeprefix("unix:")).parent / "containers"
    code = (
        "import os\n"
        f"folder = {str(folder)!r}\n"
        "print(sorted(os.listdir('/opt/gpukernel')), 'pool.sock' in os.listdir(folder))\n"
        "print([name for name in ('pool.db', 'pool.sock', 'agent.json') if os.path.exists(os.path.join(os.path.dirname(folder), name))])\n"
        "try: open(os.path.join(folder, 'x'), 'w')\n"
        "except OSError as error: print(type(error).__name__)\n"
    )
    done = podman.start(SLICE, root, "/usr/bin/python3", "-c", code, options=("--rm",))
    assert done.returncode == 0, done.stderr
    libraries, files, written = done.stdout.splitlines()
    assert libraries == "['compilers', 'cudart', 'libraries', 'ptxas', 'shim'] True"
    assert (files, written) == ("[]", "OSError")


def test_a_container_holds_nothing_before_its_first_use_of_cuda(
    podman: Podman, asked_pool: Pool, root: Path
) -> None:
    (root / "look.py").write_text(LOOK)
    twice = "until [ -e /tmp/go ]; do sleep 0.05; done; python3 /look.py; python3 /look.py; exec sleep 600"
    begun = podman.start(SLICE, root, "/bin/sh", "-c", twice, options=("-d", "--name", "asks"))
    assert begun.returncode == 0, begun.stderr
    assert asked_pool.leases() == ([], [])
    (root / "tmp" / "go").touch()
    eventually(lambda: podman("logs", "asks").stdout.count("\n") == 2)
    assert podman("logs", "asks").stdout == "0 0 655 0\n" * 2
    assert len(asked_pool.live()) == 1  # the second program is on the same slice
    os.kill(podman.process("asks"), signal.SIGKILL)
    eventually(lambda: asked_pool.promised() == 0)
    podman("rm", "--force", "asks")


def test_a_program_that_asks_in_a_full_pool_sees_its_place_and_gets_the_slice(
    podman: Podman, asked_pool: Pool, root: Path, tmp_path: Path
) -> None:
    other = root_filesystem(tmp_path / "other")
    hold = f"{LOOK}\nimport time; time.sleep(600)"
    first = podman.start(WHOLE, root, "/usr/bin/python3", "-c", hold, options=("-d", "--name", "holds"))
    assert first.returncode == 0, first.stderr
    eventually(lambda: len(asked_pool.live()) == 1)
    with ThreadPoolExecutor() as threads:
        second = threads.submit(
            podman.start, WHOLE, other, "/usr/bin/python3", "-c", LOOK, options=("--rm", "--user", "77")
        )
        eventually(lambda: len(asked_pool.leases()[1]) == 1)
        podman("rm", "--force", "--time", "0", "holds")
        done = second.result(60)
    assert "position 1 in the queue" in done.stdout, done
    assert done.stdout.splitlines()[-1] == "0 0 32768 77"
    assert asked_pool.promised() == 0


def test_links_that_a_running_container_plants_lead_its_keeper_nowhere(
    podman: Podman, asked_pool: Pool, root: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    plant = (
        "import os, socket\n"
        "os.chdir('/run/gpukernel')\n"
        f"near = range({os.getpid() - 2000}, {os.getpid() + 8000})\n"
        "for name in ['draft', 'lease', *(f'.draft.{pid}' for pid in near), *(f'.lease.{pid}' for pid in near)]:\n"
        "    if os.path.exists(name): os.unlink(name)\n"
        f"    os.symlink({str(victim)!r}, name)\n"
        "link = socket.socket(socket.AF_UNIX); link.connect('socket'); link.send(b'acquire container\\n')\n"
        "print(link.recv(100), os.path.islink('lease'))\n"
    )
    done = podman.start(
        SLICE, root, "/usr/bin/python3", "-c", plant, options=("--rm", "-v", f"{tmp_path}:{tmp_path}")
    )
    assert done.stdout == "b'live\\n' False\n", done
    assert victim.read_text() == "untouched"
    assert victim.stat().st_mode & 0o777 == 0o644


def test_a_container_that_floods_its_keeper_has_its_slice_afterwards_and_one_lease(
    podman: Podman, asked_pool: Pool, root: Path
) -> None:
    flood = (
        "import socket\n"
        "kept = []\n"
        "for i in range(500):\n"
        "    one = socket.socket(socket.AF_UNIX); one.settimeout(10); kept.append(one)\n"
        "    try: one.connect('/run/gpukernel/socket'); one.send(b'x' * 9000 if i % 2 else b'release all\\n')\n"
        "    except OSError: pass\n"
        "kept.clear()\n"
    )
    done = podman.start(SLICE, root, "/usr/bin/python3", "-c", flood + LOOK, options=("--rm",))
    assert done.stdout == "0 0 655 0\n", done
    assert len(asked_pool.leases(ended=True)[0]) == 1


def test_the_file_has_every_model_and_share_and_no_secret(own_pool: Pool) -> None:
    shares = (
        "--share",
        "0.3",
        "--share",
        "0.02",
        "--share",
        "0.30000001",
    )  # the last has the first one's name
    made = own_pool.gpukernel("cdi", *shares, "--output", "-")
    content = json.loads(made.stdout)
    assert (content["kind"], content["cdiVersion"]) == ("gpukernel.io/slice", "0.5.0")
    assert [one["name"] for one in content["devices"]] == ["v100-0.02", "v100-0.3"]
    assert "secret" not in made.stdout
    assert "token" not in made.stdout
    assert str(Path.home()) not in json.dumps(content["devices"][0]["containerEdits"]["env"])


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--share", "7"], 2, "A share lies between 0.001 and 1"),
        (["--model", "B200"], 5, "The pool has no device of the model B200"),
        (["--sockets", "/no/such"], 5, "There is no folder /no/such."),
        (["--output", "/proc/cdi.json"], 1, "/proc/cdi.json cannot be written"),
    ],
)
def test_what_cannot_be_is_one_sentence(own_pool: Pool, words: list[str], status: int, said: str) -> None:
    done = own_pool.gpukernel("cdi", *words)
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr
