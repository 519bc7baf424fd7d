"""The liberties of a worker beside NVIDIA's driver, tried by a library in the driver's place: no socket but the driver's, no connection, no folder of anybody's."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpukernel import native

SOURCE = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
static void said(const char* what, long result) {
    fprintf(stderr, "hears %s: %s\n", what, result < 0 ? strerrorname_np(errno) : "done");
}
__attribute__((constructor)) static void act(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/file", getenv("CUDA_MPS_PIPE_DIRECTORY"));
    said("a file", open(path, O_RDWR | O_CREAT, 0600));
    const int driver = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    said("the driver's socket", driver);
    said("one more", socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    said("a datagram", socket(AF_UNIX, SOCK_DGRAM, 0));
    said("of the network", socket(AF_INET, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    struct sockaddr_un name = {AF_UNIX, "\0nobody's"};
    said("a connection", connect(driver, (struct sockaddr*)&name, sizeof name));
    int pair[2];
    said("a pair", socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
    struct flock lock = {.l_type = F_RDLCK};
    const int zero = open("/proc/self/status", O_RDONLY);
    said("a lock", fcntl(zero, F_OFD_SETLK, &lock));
    said("an owner", fcntl(zero, F_SETOWN, 1));
    said("a program", fork());
    if (getenv("WAITS")) {
        write(1, "\n", 1);
        char go;
        read(0, &go, 1);
        snprintf(path, sizeof path, "/proc/self/task/%d/comm", gettid());
        said("a thread's name", open(path, O_WRONLY));
    }
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    built = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-w", "-x", "c", "-", "-o", str(built)],
        input=SOURCE,
        text=True,
        check=True,
    )
    return built


def said(library: Path, rungs: str, pipes: Path) -> dict[str, str]:
    command = [str(native.worker_executable()), "--probe", "--library", str(library)]
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipes)}
    done = subprocess.run(
        [*command, "--confine", f"{rungs},real-device"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if f'"rung":"{rungs}","used":true' not in done.stdout.replace(" ", ""):
        pytest.skip(f"this machine has no {rungs}: {done.stdout}")
    lines = (line.removeprefix("hears ") for line in done.stderr.splitlines() if line.startswith("hears "))
    return dict(line.split(": ") for line in lines)


def test_the_list_of_system_calls_has_the_drivers_socket_and_no_way_out(
    library: Path, tmp_path: Path
) -> None:
    refused = "EPERM"
    assert said(library, "system-calls", tmp_path) == {
        "a file": "done",
        "the driver's socket": "done",
        "one more": refused,
        "a datagram": refused,
        "of the network": refused,
        "a connection": "ENOENT",
        "a pair": refused,
        "a lock": "done",
        "an owner": refused,
        "a program": refused,
    }


def test_landlock_opens_the_folder_of_mps_where_nobody_else_made_it(library: Path, tmp_path: Path) -> None:
    own, link = tmp_path / "own", tmp_path / "link"
    own.mkdir()
    link.symlink_to(own)
    assert said(library, "landlock", own)["a file"] == "done"
    assert said(library, "landlock", link)["a file"] == "done"
    if os.getuid() == 0:
        os.chown(link, 12345, 12345, follow_symlinks=False)
        assert said(library, "landlock", link)["a file"] == "EACCES"
        os.chown(own, 12345, 12345)
        assert said(library, "landlock", own)["a file"] == "EACCES"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can have the kernel forget its inodes")
def test_landlock_lets_the_driver_name_threads_when_the_kernel_has_forgotten_inodes(library: Path) -> None:
    command = [str(native.worker_executable()), "--probe", "--library", str(library)]
    process = subprocess.Popen(
        [*command, "--confine", "landlock,real-device"],
        env={**os.environ, "WAITS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    Path("/proc/sys/vm/drop_caches").write_text("2")
    out, heard = process.communicate("\n")
    if '"rung":"landlock","used":true' not in out.replace(" ", ""):
        pytest.skip(f"this machine has no Landlock: {out}")
    assert "hears a thread's name: done" in heard.splitlines()
