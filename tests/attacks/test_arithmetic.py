"""Make sums of sizes wrap around, or grow without a bound, by images whose numbers are large.

The attacker gains the GPU server's own memory (registers of functions that call themselves took gigabytes of a 64 MiB slice), and
figures that are wrong (constants of 4 GiB counted as some bytes).
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.remoting.conftest import MIB, SANITIZED, worker

# A function that calls itself 1,500 times and has 4,000 registers of its own in each call: 1 MiB for the threads of a warp.
RECURSION = """
text = b'''
.version 7.0
.target sm_70
.address_size 64
.visible .func f(.param .b32 depth) {
    .reg .b32 %r<3>; .reg .b64 %rd<4000>; .reg .pred %p;
    ld.param.u32 %r1, [depth]; setp.eq.u32 %p, %r1, 0; @%p ret;
''' + b"".join(b"mov.u64 %%rd%d, 1;" % i for i in range(4000)) + b'''
    sub.u32 %r2, %r1, 1;
    { .param .b32 a; st.param.b32 [a], %r2; call.uni f, (a); }
    ret;
}
.visible .entry k() {
    .reg .b32 %r<2>;
    mov.u32 %r1, 1500;
    { .param .b32 a; st.param.b32 [a], %r1; call.uni f, (a); }
    ret;
}
'''
begin(); f = load(text, b"k")
ok(d.cuLaunchKernel(f, 1,1,1, 32,1,1, 0, 0, 0, 0)); print(d.cuCtxSynchronize()[0].name)
"""

# Two constants of 2 GiB each and one of 16 bytes.
CONSTANTS = """
text = b'''
.version 7.0
.target sm_70
.address_size 64
.const .b8 a[2147483648];
.const .b8 b[2147483648];
.const .b8 c[16];
.visible .entry k() { ret; }
'''
begin(); result, module = d.cuModuleLoadData(text)
print(result.name)
if int(result) == 0:
    print(ok(d.cuFuncGetAttribute(d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, ok(d.cuModuleGetFunction(module, b"k")))))
"""


def peak_bytes(pid: int) -> int:
    """Return the most memory that the process has had at once."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.skipif(SANITIZED, reason="AddressSanitizer takes memory of its own")
def test_registers_of_recursion_are_bounded() -> None:
    async def story() -> None:
        async with worker() as one:
            done = await one.run(RECURSION)
            assert peak_bytes(one.handle.pid) < 800 * MIB
            said, name = done.stdout.splitlines()
            assert "stack overflow: the registers of all calls within each other take 512 MiB" in said
            assert name == "CUDA_ERROR_ILLEGAL_ADDRESS"

    asyncio.run(story())


def test_constants_beyond_the_device_s_are_refused() -> None:
    async def story() -> None:
        async with worker(memory_mib=8192) as one:
            done = await one.run(CONSTANTS)
            assert done.stdout == "CUDA_ERROR_INVALID_PTX\n", done
            assert "too much constant memory" in done.stderr

    asyncio.run(story())
