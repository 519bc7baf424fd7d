"""Containers whose programs are hostile: they bring their own driver, forge their lease file, and look for another container's."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conftest import Pool, eventually
from tests.engines.containers.podman import SLICE, Podman, root_filesystem
from tests.hub.containers import folders_of_this_python

MEMORY = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
started, context, place = cuda.cuInit(0), ctypes.c_void_p(), ctypes.c_uint64()
if started == 0:
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)
took = [cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(int(size) << 20)) for size in sys.argv[1:]]
print(started, *took)
"""
OUT_OF_MEMORY = 2
# What an image's first program may do: forget all variables, and use copies of libraries and lease that are its own.
ENTRYPOINT = """#!/bin/sh
cp -r /opt/gpukernel/shim /own
sed "$GPUKERNEL_TEST_FORGE" /run/gpukernel/lease > /own/lease
exec env -i PATH=/usr/bin LD_LIBRARY_PATH=/own/shim GPUKERNEL_LEASE_FILE=/own/lease "$@"
"""


def with_entrypoint(root: Path) -> Path:
    (root / "own").mkdir()
    (root / "own" / "start").write_text(ENTRYPOINT)
    (root / "own" / "start").chmod(0o755)
    return root


def forged(podman: Podman, root: Path, forge: str, *command: str) -> str:
    """Run a command behind the entrypoint above; `forge` is what it makes of its lease file, in the words of ``sed``."""
    options = ("--rm", "--entrypoint", "/own/start", "--env", f"GPUKERNEL_TEST_FORGE={forge}")
    done = podman.start(SLICE, root, *command, options=options)
    return f"{done.stdout}{done.stderr}"


def test_an_entrypoint_that_replaces_the_client_has_no_byte_more(
    podman: Podman, pool: Pool, root: Path
) -> None:
    with_entrypoint(root)
    words = ("/usr/bin/python3", "-c", MEMORY, "500", "500", "30000")
    assert forged(podman, root, "", *words) == f"0 0 {OUT_OF_MEMORY} {OUT_OF_MEMORY}\n"


def test_root_of_a_container_is_nobody_at_the_pool_whose_socket_it_sees(
    podman: Podman, pool: Pool, root: Path, tmp_path: Path
) -> None:
    victim = root_filesystem(tmp_path / "victim")
    begun = podman.start(SLICE, victim, "/bin/sleep", "600", options=("-d", "--name", "held"))
    assert begun.returncode == 0, begun.stderr
    try:
        (lease,) = pool.live()
        folder = Path(pool.address.removeprefix("unix:")).parent / "containers"
        options = ["--rm", "--cap-drop", "all", "--security-opt", "no-new-privileges"]
        options += [word for place in folders_of_this_python() for word in ("-v", f"{place}:{place}:ro")]
        for variable in (f"GPUKERNEL_POOL=unix:{folder}/pool.sock", "GPUKERNEL_POOL_TOKEN=", "HOME=/tmp"):
            options += ["--env", variable]
        for words in (
            ("leases", "--all"),
            ("run", "--wait", "0", "-p", "0.01", "true"),
            ("drain", pool.devices()[0].server),
            ("token", "create", "x", "--scope", "admin"),
        ):
            cli = (sys.executable, "-m", "gpukernel.cli", *words)
            done = podman(
                "run", "--network", "none", "--device", SLICE, *options, "--rootfs", str(root), *cli
            )
            assert done.returncode != 0, done
            assert "token" in done.stderr, done
            assert lease.id not in done.stdout, done
        look = f"find {folder.parent} -type f -o -type s; rm -f {folder}/pool.sock && echo removed"
        done = podman.start(SLICE, root, "/bin/sh", "-c", look, options=("--rm", "--cap-drop", "all"))
        found = done.stdout.split()
        assert f"{folder}/pool.sock" in found, done
        assert {str(Path(one).parent) for one in found} == {str(folder)}
        assert [one.id for one in pool.live()] == [lease.id]
    finally:
        podman("rm", "--force", "--time", "0", "held")
    eventually(lambda: pool.promised() == 0)


def test_a_forged_lease_file_reaches_no_worker_of_another_container(
    podman: Podman, pool: Pool, root: Path, tmp_path: Path
) -> None:
    victim = root_filesystem(tmp_path / "victim")
    begun = podman.start(SLICE, victim, "/bin/sleep", "600", options=("-d", "--name", "victim"))
    assert begun.returncode == 0, begun.stderr
    try:
        theirs = podman("exec", "victim", "cat", "/run/gpukernel/lease").stdout
        words = dict(
            line.split(" ", 1) for line in theirs.splitlines() if line.split()[0] in ("lease", "secret")
        )
        (device,) = [line for line in theirs.splitlines() if line.startswith("device ")]
        (endpoint,) = [word for word in device.split() if word.startswith("unix:")]
        with_entrypoint(root)
        # As it is, the victim's worker is reached by nobody but its holder …
        for forge in (
            f"s|^device .*|device 0 {endpoint}|",
            f"s|^device .*|device 0 {endpoint}|;s|^lease .*|lease {words['lease']}|",
            f"s|^device .*|device 0 {endpoint}|;s|^secret .*|secret {'0' * len(words['secret'])}|",
        ):
            said = forged(podman, root, forge, "/usr/bin/python3", "-c", MEMORY, "1")
            assert said.split("\n")[0].split(" ")[0] != "0", said
        # … and its secret would do, so it is what must not be found.
        forge = f"s|^device .*|device 0 {endpoint}|;s|^secret .*|secret {words['secret']}|"
        said = forged(podman, root, forge, "/usr/bin/python3", "-c", MEMORY, "1")
        assert said == "0 0\n"
        look = 'grep -rlsF -e "$1" / --exclude-dir=proc --exclude-dir=sys --exclude-dir=usr --exclude-dir=dev; ls /run/gpukernel'
        found = podman.start(
            SLICE,
            root_filesystem(tmp_path / "looks"),
            "/bin/sh",
            "-c",
            look,
            "sh",
            words["secret"],
            options=("--rm",),
        )
        assert found.stdout.split() == ["lease"], found
    finally:
        podman("rm", "--force", "--time", "0", "victim")
    eventually(lambda: pool.promised() == 0)
