"""The lease file: what is written, and that both readers understand what the previous release has written."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gpukernel.remoting.environment import shim_environment
from gpukernel.remoting.lease_file import (
    LeaseFile,
    LeaseFileError,
    read_lease_file,
    write_lease_file,
    write_no_lease_file,
)
from tests.remoting.conftest import worker

NATIVE = Path(__file__).parents[2] / "gpukernel" / "native"

LIVE_1 = """\
version 1
lease 8c1f
state live
secret {secret}
device 0 {endpoints}
key 5b0e
desk /run/user/1000/jupyter/gpukernel-17.desk
"""
"""A kernel's file as gpukernel 0.1 wrote it."""

NONE_1 = """\
version 1
state none
reason released in its notebook
key 5b0e
desk {socket}
"""
"""The same after ``%gpu release``."""

NONE_2 = """\
version 2
state none
reason released in its notebook
kernel 5b0e
socket {socket}
"""

DIRECT_1 = """\
version 1
lease 8c1f
state live
secret 3f9a
driver /usr/lib/x86_64-linux-gnu/libcuda.so.1
device 0 direct:/run/gpukernel/direct/8c1f-0
device 1 direct:/run/gpukernel/direct/8c1f-1
"""

ENDED_1 = "version 1\nlease 8c1f\nstate ended\nsecret 3f9a\nreason the holder was idle for 20 minutes\n"


def lease(**changes: object) -> SimpleNamespace:
    slices = [SimpleNamespace(endpoints=("unix:/a", "tcp:127.0.0.1:1")), SimpleNamespace(endpoints=())]
    return SimpleNamespace(
        **{"id": "8c1f", "state": "live", "end_reason": "", "secret": "3f9a", "slices": slices, **changes}
    )


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# --- in Python ---


def test_a_kernels_file_is_version_2_and_readable_by_its_user_only(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    write_lease_file(path, lease(), "5b0e", "/run/with space/s.sock", Path("/usr/lib/libcuda.so.1"))  # type: ignore[arg-type]
    assert path.read_text() == (
        "version 2\nlines 10\nlease 8c1f\nstate live\nsecret 3f9a\ndriver /usr/lib/libcuda.so.1\n"
        "device 0 unix:/a tcp:127.0.0.1:1\ndevice 1\nkernel 5b0e\nsocket /run/with space/s.sock\n"
    )
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    assert read_lease_file(path) == LeaseFile(
        lease="8c1f",
        state="live",
        secret="3f9a",
        driver="/usr/lib/libcuda.so.1",
        kernel="5b0e",
        socket="/run/with space/s.sock",
        devices=(("unix:/a", "tcp:127.0.0.1:1"), ()),
    )


def test_a_file_without_a_lease_says_why_and_where_to_ask(tmp_path: Path) -> None:
    write_no_lease_file(tmp_path / "lease", "released\nin its notebook", "5b0e", "/s")
    counted = NONE_2.replace("version 2\n", "version 2\nlines 6\n")
    assert (tmp_path / "lease").read_text() == counted.format(socket="/s")


def test_a_path_that_is_no_utf_8_is_written_as_it_is(tmp_path: Path) -> None:
    write_no_lease_file(tmp_path / "lease", "", "5b0e", os.fsdecode(b"/\xff/s"))
    assert b"socket /\xff/s\n" in (tmp_path / "lease").read_bytes()


def test_a_file_of_the_previous_release_reads_as_one_of_this(tmp_path: Path) -> None:
    old = read_lease_file(written(tmp_path / "1", NONE_1.format(socket="/s")))
    assert old == read_lease_file(written(tmp_path / "2", NONE_2.format(socket="/s")))
    assert old == LeaseFile(state="none", reason="released in its notebook", kernel="5b0e", socket="/s")
    live = read_lease_file(written(tmp_path / "3", LIVE_1.format(secret="3f9a", endpoints="unix:/a")))
    assert live == LeaseFile(
        lease="8c1f",
        state="live",
        secret="3f9a",
        kernel="5b0e",
        socket="/run/user/1000/jupyter/gpukernel-17.desk",
        devices=(("unix:/a",),),
    )
    direct = read_lease_file(written(tmp_path / "4", DIRECT_1))
    assert direct.driver == "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    assert direct.devices == (
        ("direct:/run/gpukernel/direct/8c1f-0",),
        ("direct:/run/gpukernel/direct/8c1f-1",),
    )
    assert read_lease_file(written(tmp_path / "5", ENDED_1)).reason == "the holder was idle for 20 minutes"


@pytest.mark.parametrize(("text", "named"), [("version 3\nstate live\n", "3"), ("state live\n", "")])
def test_another_version_is_one_sentence(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(
        LeaseFileError, match=f"has version “{named}”, and this gpukernel reads versions 1 and 2"
    ):
        read_lease_file(written(tmp_path / "lease", text))


def test_a_file_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LeaseFileError, match=r"The lease file .*gone cannot be read: No such file"):
        read_lease_file(tmp_path / "gone")


# --- what is cut off, in Python and in C++ ---

READER = r"""
#include <iostream>
#include "common/lease_file.h"

int main(int count, char** paths) {  // for each file: what it says, or what is wrong with it
    for (int i = 1; i < count; ++i) {
        gpukernel::wire::LeaseFile file;
        std::string error;
        gpukernel::wire::read_lease_file(paths[i], file, error);
        if (file.state.empty()) {
            std::cout << "error " << error << "\n";
            continue;
        }
        std::cout << file.lease << "|" << file.state << "|" << file.secret << "|" << file.reason << "|"
                  << file.driver << "|" << file.kernel << "|" << file.socket;
        for (const auto& device : file.devices) {
            std::cout << "|device";
            for (const auto& endpoint : device) std::cout << " " << endpoint;
        }
        std::cout << "\n";
    }
}
"""

Reader = Callable[[list[Path]], list[str]]


def in_python(paths: list[Path]) -> list[str]:
    """Return what each file says, or what is wrong with it, in the words of `READER`."""
    said = []
    for path in paths:
        try:
            file = read_lease_file(path)
        except LeaseFileError as error:
            said.append(f"error {error}")
            continue
        words = (file.lease, file.state, file.secret, file.reason, file.driver, file.kernel, file.socket)
        said.append("|".join([*words, *(" ".join(("device", *ways)) for ways in file.devices)]))
    return said


@pytest.fixture(scope="module")
def in_cpp(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    folder = tmp_path_factory.mktemp("reader")
    (folder / "reader.cpp").write_text(READER)
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler is not None
    sources = [str(folder / "reader.cpp"), str(NATIVE / "common" / "lease_file.cpp")]
    subprocess.run(
        [compiler, "-std=c++20", "-I", str(NATIVE), *sources, "-o", str(folder / "reader")], check=True
    )

    def read(paths: list[Path]) -> list[str]:
        done = subprocess.run(
            [folder / "reader", *paths], capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout.split("\n")[:-1]

    return read


@pytest.fixture(params=["Python", "C++"])
def reader(request: pytest.FixtureRequest) -> Reader:
    return in_python if request.param == "Python" else cast("Reader", request.getfixturevalue("in_cpp"))


def prefixes(whole: bytes, folder: Path) -> list[Path]:
    """A file for each beginning of `whole`, the empty one first, `whole` last."""
    paths = [folder / str(length) for length in range(len(whole) + 1)]
    for length, path in enumerate(paths):
        path.write_bytes(whole[:length])
    return paths


WRITTEN: dict[str, Callable[[Path], None]] = {
    "of a kernel": lambda path: write_lease_file(path, lease(), "5b0e", "/run/with space/s.sock"),  # type: ignore[arg-type]
    "of a program": lambda path: write_lease_file(path, lease()),  # type: ignore[arg-type]
    "in direct mode": lambda path: write_lease_file(path, lease(), driver=Path("/usr/lib/libcuda.so.1")),  # type: ignore[arg-type]
    "ended": lambda path: write_lease_file(path, lease(state="ended", end_reason="it was idle, wie schön")),  # type: ignore[arg-type]
    "without a lease": lambda path: write_no_lease_file(path, "released in its notebook", "5b0e", "/s"),
    "without a lease or a reason": lambda path: write_no_lease_file(path, "", "5b0e", "/s"),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_file_that_is_cut_off_at_any_byte_is_an_error_that_says_so(
    reader: Reader, tmp_path: Path, kind: str
) -> None:
    WRITTEN[kind](tmp_path / "lease")
    *cut, whole = reader(prefixes((tmp_path / "lease").read_bytes(), tmp_path))
    assert not whole.startswith("error")
    assert "is empty; start the program or the kernel again" in cut[0]
    assert [said for said in cut[1:] if "is cut off or damaged; start" not in said] == []


@pytest.mark.parametrize("text", [LIVE_1, NONE_1, NONE_2, DIRECT_1, ENDED_1])
def test_an_older_file_that_is_cut_off_is_an_error_or_the_same_lease(
    reader: Reader, tmp_path: Path, text: str
) -> None:
    whole_text = text.format(secret="3f9a", endpoints="unix:/a", socket="/s").encode()
    *cut, whole = reader(prefixes(whole_text, tmp_path))
    assert not whole.startswith("error")
    same = whole.split("|")[:2]
    read = [said for said in cut if not said.startswith("error")]
    assert [said for said in read if said.split("|")[:2] != same] == []
    if same[1] == "none":
        assert read == []


def test_python_and_cpp_read_the_same_of_every_file(in_cpp: Reader, tmp_path: Path) -> None:
    paths = []
    for number, write in enumerate(WRITTEN.values()):
        paths.append(tmp_path / str(number))
        write(paths[-1])
    for number, text in enumerate((LIVE_1, NONE_1, NONE_2, DIRECT_1, ENDED_1)):
        filled = text.format(secret="3f9a", endpoints="unix:/a tcp:h:1", socket="/with space/s")
        paths.append(written(tmp_path / f"old {number}", filled))
    assert in_cpp(paths) == in_python(paths)


def test_cpp_says_what_is_wrong_with_what_is_no_lease_file(in_cpp: Reader, tmp_path: Path) -> None:
    fifo, huge, empty = tmp_path / "fifo", tmp_path / "huge", tmp_path / "empty"
    os.mkfifo(fifo)
    huge.write_bytes(b"version 2\n" + b"x" * 2**16)
    empty.touch()
    paths = [fifo, Path("/dev/zero"), tmp_path, huge, empty, tmp_path / "gone"]
    assert in_cpp(paths) == [
        f"error the lease file {fifo} cannot be read: it is no regular file",
        "error the lease file /dev/zero cannot be read: it is no regular file",
        f"error the lease file {tmp_path} cannot be read: it is no regular file",
        f"error the lease file {huge} cannot be read: it is larger than 65536 bytes",
        f"error the lease file {empty} is empty; start the program or the kernel again",
        f"error the lease file {tmp_path / 'gone'} cannot be read: No such file or directory",
    ]


# --- in C++, by the shim ---

PROGRAM = "from cuda.bindings import driver as d; print(d.cuInit(0)[0].name, d.cuDeviceGetCount()[0].name)"


def run(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=shim_environment(path, os.environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_tensorflow_takes_memory_as_it_needs_it_unless_it_is_told() -> None:
    variable, path = "TF_FORCE_GPU_ALLOW_GROWTH", Path("/nowhere")
    assert shim_environment(path, {})[variable] == "true"
    assert shim_environment(path, {variable: "false"})[variable] == "false"


def test_a_program_runs_on_the_slice_of_a_file_of_the_previous_release(tmp_path: Path) -> None:
    async def story() -> subprocess.CompletedProcess[str]:
        async with worker() as one:
            text = LIVE_1.format(secret=one.secret, endpoints=" ".join(one.handle.endpoints))
            return await asyncio.to_thread(run, written(tmp_path / "lease", text))

    done = asyncio.run(story())
    assert (done.stdout, done.stderr) == ("CUDA_SUCCESS CUDA_SUCCESS\n", "")


class Listener:
    """A kernel socket that refuses, and what it was asked."""

    def __init__(self, path: Path) -> None:
        self.asked: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = self._socket.accept()
                with link, link.makefile("rw") as lines:
                    self.asked.append(lines.readline())
                    lines.write("refused there is none for you\n")

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def kernel_socket(tmp_path: Path) -> Iterator[tuple[Listener, Path]]:
    path = tmp_path / "s.sock"
    listener = Listener(path)
    yield listener, path
    listener.close()


@pytest.mark.parametrize("text", [NONE_1, NONE_2], ids=["version 1", "version 2"])
def test_a_kernel_asks_for_its_slice_at_the_socket_of_its_file(
    kernel_socket: tuple[Listener, Path], tmp_path: Path, text: str
) -> None:
    listener, path = kernel_socket
    done = run(written(tmp_path / "lease", text.format(socket=path)))
    assert done.stdout.startswith("CUDA_ERROR_NO_DEVICE ")
    assert "there is none for you" in done.stderr
    assert [line.split() for line in listener.asked] == [["acquire", "5b0e"]]


def test_the_shim_says_the_reason_of_a_file_of_the_previous_release(tmp_path: Path) -> None:
    done = run(written(tmp_path / "lease", ENDED_1))
    assert done.stdout.startswith("CUDA_ERROR_NO_DEVICE ")
    assert "the holder was idle for 20 minutes." in done.stderr


@pytest.mark.parametrize(("text", "named"), [("version 3\nstate live\n", "3"), ("state live\n", "")])
def test_the_shim_says_one_sentence_of_another_version(tmp_path: Path, text: str, named: str) -> None:
    done = run(written(tmp_path / "lease", text))
    assert done.stdout.startswith("CUDA_ERROR_NO_DEVICE ")
    assert f"has version '{named}', and this gpukernel reads versions 1 and 2" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_shim_says_that_a_file_is_cut_off_and_asks_nobody(
    kernel_socket: tuple[Listener, Path], tmp_path: Path
) -> None:
    listener, path = kernel_socket
    write_no_lease_file(tmp_path / "lease", "", "5b0e", str(path))
    done = run(written(tmp_path / "cut", (tmp_path / "lease").read_text()[:-1]))
    assert done.stdout.startswith("CUDA_ERROR_NO_DEVICE ")
    assert f"the lease file {tmp_path / 'cut'} is cut off or damaged" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert listener.asked == []


def test_what_is_no_lease_file_is_one_sentence_and_never_waited_for(tmp_path: Path) -> None:
    fifo, huge = tmp_path / "fifo", tmp_path / "huge"
    os.mkfifo(fifo)
    huge.write_bytes(b"version 2\n" + b"x" * 2**16)
    for path, words in (
        (fifo, "no regular file"),
        (Path("/dev/zero"), "no regular file"),
        (tmp_path, "no regular file"),
        (huge, "larger than 65536 bytes"),
        ("a\0b", "null byte"),
    ):
        with pytest.raises(LeaseFileError, match=words):
            read_lease_file(path)
