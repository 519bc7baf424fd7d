"""A whole server whose workers execute hostile code on request: the pool, the agent and the worker are the real ones.

Only the driver library below the worker is another (``hostile_driver.c``): what somebody has who broke into a worker.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpukernel import native
from gpukernel.agent.confinement import ACCOUNTS
from tests.conftest import Pool

__all__ = ["CALLS", "Door", "Outcome", "hostile_native", "may_have_accounts", "on_a_slice", "rungs_of"]

CALLS = {
    "open": 2,
    "mmap": 9,
    "socket": 41,
    "connect": 42,
    "bind": 49,
    "listen": 50,
    "fork": 57,
    "execve": 59,
    "kill": 62,
    "rename": 82,
    "mkdir": 83,
    "link": 86,
    "unlink": 87,
    "symlink": 88,
    "chmod": 90,
    "ptrace": 101,
    "setpriority": 141,
    "sched_setparam": 142,
    "sched_setscheduler": 144,
    "mount": 165,
    "openat": 257,
    "unshare": 272,
    "process_vm_readv": 310,
    "sched_setattr": 314,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "pidfd_open": 434,
    "process_madvise": 440,
}
"""Numbers of system calls on x86-64 (``asm/unistd_64.h``)."""

SOURCE = Path(__file__).with_name("hostile_driver.c")

FAULT = r"""
import subprocess, sys
WILD = r'''
from cuda.bindings import driver as d
def ok(result):
    code, *values = result
    assert int(code) == 0, code
    return values[0] if len(values) == 1 else values
ok(d.cuInit(0)); ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0))))
ok(d.cuModuleLoadData(b".version 7.0\n.target sm_70\n.address_size 64\n//HOSTILE count\n" + bytes(1)))
text = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry wild() { .reg .b64 %rd<2>; .reg .b32 %r<2>; "
text += b"mov.u64 %rd1, 4096; mov.u32 %r1, 1; st.global.u32 [%rd1], %r1; ret; }" + bytes(1)
wild = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(text)), b"wild"))
ok(d.cuLaunchKernel(wild, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
assert int(d.cuCtxSynchronize()[0]) != 0
'''
subprocess.run([sys.executable, "-c", WILD], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""
"""A first program of the slice, whose kernel destroys the context, so that the worker executes itself anew."""

PROGRAM = """
import ctypes, json, sys
from cuda.bindings import driver as d
def ok(result):
    code, *values = result
    assert int(code) == 0, code
    return values[0] if len(values) == 1 else values
ok(d.cuInit(0)); ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0))))
for line in sys.stdin:
    text = ".version 7.0\\n.target sm_70\\n.address_size 64\\n//HOSTILE " + line
    code, module = d.cuModuleLoadData(text.encode() + b"\\0")
    if int(code):
        print(json.dumps(["failed", str(code)]), flush=True)
        continue
    values = []
    for name in (b"outcome", b"answer"):
        place, size = ok(d.cuModuleGetGlobal(module, name))
        there = bytearray(size)
        ok(d.cuMemcpyDtoH(there, place, size))
        values.append(bytes(there))
    ok(d.cuModuleUnload(module))
    print(json.dumps([int.from_bytes(values[0], "little", signed=True), values[1].rstrip(b"\\0").decode("latin-1")]), flush=True)
"""


@dataclass(frozen=True)
class Outcome:
    """The result of hostile code: a number or a negative errno, and the bytes that it could read."""

    result: int
    answer: str

    @property
    def refused(self) -> bool:
        """Return whether the system refused it for want of rights."""
        return -self.result in (errno.EPERM, errno.EACCES)

    def __str__(self) -> str:
        name = errno.errorcode.get(-self.result, "") if self.result < 0 else ""
        return f"{name or self.result} {self.answer[:60]!r}"


class Door:
    """Hostile code in the worker of one slice, by way of a program that holds the slice."""

    def __init__(self, program: subprocess.Popen[str]) -> None:
        self._program = program

    def _ask(self, line: str) -> Outcome | None:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._program.stdin.write(line + "\n")
            self._program.stdin.flush()
        if not (text := self._program.stdout.readline()):
            return None
        result, answer = json.loads(text)
        return None if result == "failed" else Outcome(result, answer)

    def act(self, line: str) -> Outcome:
        """Have the worker execute `line`; fails where the worker died of it."""
        outcome = self._ask(line)
        assert outcome is not None, f"the worker, or its program, died of: {line}"
        return outcome

    def deadly(self, line: str) -> Outcome | None:
        """Have the worker execute `line`; None where it died of it."""
        return self._ask(line)

    def call(self, name: str, *words: object) -> Outcome:
        """Make a system call inside the worker."""
        return self.act(" ".join(["syscall", str(CALLS[name]), *map(str, words)]))

    @property
    def pid(self) -> int:
        """Return the worker's process id."""
        return self.act("pid").result


def hostile_native(folder: Path) -> Path:
    """Make a copy of the native parts in `folder` in which the simulated GPU has the door; skips where nothing compiles C."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    nvidia = pytest.importorskip("nvidia.cuda_runtime")
    root, installed = folder / "native", native.simgpu_library()
    real = root / "simgpu" / "real" / "libcuda.so.1"
    for part in ("shim", "direct", "wire", "bin"):
        (root / part).mkdir(parents=True)
        for file in (installed.parents[1] / part).iterdir():
            if file.is_file():
                (root / part / file.name).symlink_to(file)
    real.parent.mkdir(parents=True)
    shutil.copy(installed, real)
    command = [compiler, "-shared", "-fPIC", "-O1", f'-DSIMGPU="{real}"', "-w", str(SOURCE)]
    command += ["-I", f"{next(iter(nvidia.__path__))}/include", "-Wl,--no-as-needed", str(real)]
    command += [f"-Wl,-rpath,{real.parent}", "-o", str(root / "simgpu/libcuda.so.1"), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return root


def rungs_of(pool: Pool) -> frozenset[str]:
    """Return the rungs of the confinement that this machine lets the workers of `pool` have."""
    findings = json.loads(pool.gpukernel("health", "--json").stdout)
    (one,) = [finding for finding in findings if finding["part"].startswith("confinement ")]
    return frozenset(rung["name"] for rung in one["rungs"] if rung["used"])


def may_have_accounts(*places: Path) -> bool:
    """Return whether this process may start others with the accounts of workers, and whether those can reach `places`."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    change_group, change_user = 1 << 6, 1 << 7  # CAP_SETGID, CAP_SETUID
    capable = int(status["CapEff"], 16) & (change_group | change_user) == change_group | change_user
    first, count = ACCOUNTS

    def mapped(kind: str) -> bool:
        ranges = (map(int, line.split()) for line in Path(f"/proc/self/{kind}_map").read_text().splitlines())
        return any(begin <= first and first + count <= begin + size for begin, _, size in ranges)

    reached = all(folder.stat().st_mode & 0o001 for place in places for folder in place.resolve().parents)
    return capable and mapped("uid") and mapped("gid") and reached


@contextlib.contextmanager
def on_a_slice(pool: Pool, *options: str, before: str = "") -> Iterator[Door]:
    """Hold a slice of `pool`, execute `before` on it, and give the door into its worker."""
    program = pool.start_on_slice(before + PROGRAM, *(options or ("-m", "128")))
    try:
        yield Door(program)
    finally:
        program.kill()
        program.communicate()
