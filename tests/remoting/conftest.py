from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpukernel.remoting.environment import shim_environment
from gpukernel.remoting.lease_file import write_lease_file
from gpukernel.remoting.worker import WorkerHandle, start_worker
from tests.real_gpu import NATIVE, cuda_library
from tests.remoting.answers import call_table

MIB = 2**20
SANITIZED = "address" in os.environ.get("GPUKERNEL_TEST_SANITIZED", "")  # by ``make sanitize``
WITHOUT_SANITIZER = pytest.mark.skipif(
    SANITIZED,
    reason="AddressSanitizer takes a program's fault for itself, keeps what was freed, and needs mappings of its own",
)
WITHOUT_THREAD_SANITIZER = pytest.mark.skipif(
    os.environ.get("GPUKERNEL_TEST_SANITIZED") == "thread",
    reason="ThreadSanitizer must be in a process from its beginning, so it watches workers and not Python",
)
AT_ADDRESSES_OF_THE_PROGRAM = pytest.mark.skipif(
    os.environ.get("GPUKERNEL_TEST_SANITIZED") == "thread",
    reason="ThreadSanitizer leaves a worker parts of its address space only, and the program has chosen where memory lies",
)
AT_FULL_SPEED = pytest.mark.skipif(
    "GPUKERNEL_TEST_SANITIZED" in os.environ,
    reason="under a sanitizer what serves the device takes as much of the processor as the device",
)


class Worker:
    """A real worker on a simulated V100, or on a real GPU (`tests.real_gpu`), with its lease, and programs on it."""

    def __init__(self, handle: WorkerHandle, secret: str, folder: Path) -> None:
        self.handle = handle
        self.secret = secret
        self.folder = folder

    def environment(
        self,
        secret: str | None = None,
        kind: str = "unix",
        second: Worker | None = None,
        shared_memory: bool = True,
    ) -> dict[str, str]:
        if NATIVE:
            return dict(os.environ)
        handles = [self.handle, second.handle] if second else [self.handle]
        endpoints = [[e for e in handle.endpoints if e.startswith(kind)] for handle in handles]
        lease = SimpleNamespace(
            id=self.handle.lease_id,
            state="live",
            end_reason="",
            secret=self.secret if secret is None else secret,
            slices=[SimpleNamespace(endpoints=each) for each in endpoints],
        )
        path = self.folder / f"lease-{secrets.token_hex(4)}"
        write_lease_file(path, lease)  # type: ignore[arg-type]
        environment = shim_environment(path, os.environ)
        return {**environment, "GPUKERNEL_SHARED_MEMORY": str(int(shared_memory))}

    async def run(self, code: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-u", "-c", PRELUDE + code],
            env=self.environment(**options),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    async def run_module(self, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """``python -m WORDS…`` from the repository's root, with more settings in its environment."""
        return await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", *words],
            cwd=Path(__file__).parents[2],
            env=self.environment() | settings,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    def start(self, code: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-u", "-c", PRELUDE + code],
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


PRELUDE = """
import ctypes, os, sys, threading
from cuda.bindings import driver as d
def ok(result):
    code, *values = result
    assert int(code) == 0, code
    return values[0] if len(values) == 1 else values
def begin():
    ok(d.cuInit(0)); ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0))))
def load(ptx, name):
    return ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(ptx + b"\\0")), name))
WILD = b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry wild() { .reg .b64 %rd<2>; .reg .b32 %r<2>; mov.u64 %rd1, 4096; mov.u32 %r1, 1; st.global.u32 [%rd1], %r1; ret; }
'''
STORE_U32 = b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry store(.param .u64 to, .param .u32 value) { .reg .b64 %rd<2>; .reg .b32 %r<2>; ld.param.u64 %rd1, [to]; ld.param.u32 %r1, [value]; st.global.u32 [%rd1], %r1; ret; }
'''
STORE_PAIR = b'''.version 7.0
.target sm_70
.address_size 64
.visible .entry store(.param .u64 first, .param .u64 to, .param .u64 second) { .reg .b64 %rd<4>; ld.param.u64 %rd1, [first]; ld.param.u64 %rd2, [to]; ld.param.u64 %rd3, [second]; st.global.u64 [%rd2], %rd1; st.global.u64 [%rd2+8], %rd3; ret; }
'''
"""


@contextlib.asynccontextmanager
async def worker(
    memory_mib: int = 64,
    secret: str | None = None,
    weight: float = 1,
    library: Path | None = None,
    **options: Any,
) -> AsyncIterator[Worker]:
    with tempfile.TemporaryDirectory(prefix="gpukernel-test-", dir="/tmp") as folder:
        secret = secret or secrets.token_hex(32)
        handle = await start_worker(
            library=library or cuda_library(),
            device=0,
            memory_bytes=memory_mib * MIB,
            weight=weight,
            lease_id="test",
            secret=secret,
            directory=Path(folder),
            tcp_host="127.0.0.1",
            **options,
        )
        try:
            yield Worker(handle, secret, Path(folder))
        finally:
            handle.kill()
            await handle.wait()


def call_number(name: str) -> int:
    """Return the number of a custom or driver call on the wire, by the table of the native sources."""
    return int(call_table().number_of(name))
