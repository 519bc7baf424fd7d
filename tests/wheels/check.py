"""``python check.py``: try the gpukernel that is installed, as a stranger's machine has it: no compiler, no checkout, no test packages.

A pool with one simulated V100 starts, a program runs a kernel on 2 % of it, and the library for TLS can be loaded.

``python check.py ROOT``: the program is another distribution's Python, whose root directory that is.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = r'''
import ctypes as c
cuda = c.CDLL("libcuda.so.1")
def call(name, *args):
    code = getattr(cuda, name)(*args)
    assert code == 0, f"{name}: {code}"
PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry twice(.param .u64 data)
{
    .reg .b32 %t, %x; .reg .b64 %at, %by;
    ld.param.u64 %at, [data];
    mov.u32 %t, %tid.x; mul.wide.u32 %by, %t, 4; add.u64 %at, %at, %by;
    ld.global.u32 %x, [%at]; add.u32 %x, %x, %x; st.global.u32 [%at], %x;
    ret;
}"""
device, context, module, kernel, data = c.c_int(), c.c_void_p(), c.c_void_p(), c.c_void_p(), c.c_uint64()
free, total = c.c_size_t(), c.c_size_t()
call("cuInit", 0)
call("cuDeviceGet", c.byref(device), 0)
call("cuCtxCreate_v2", c.byref(context), 0, device)
call("cuMemGetInfo_v2", c.byref(free), c.byref(total))
call("cuModuleLoadData", c.byref(module), PTX)
call("cuModuleGetFunction", c.byref(kernel), module, b"twice")
call("cuMemAlloc_v2", c.byref(data), c.c_size_t(256))
values = (c.c_uint32 * 64)(*range(64))
call("cuMemcpyHtoD_v2", data, values, c.c_size_t(256))
call("cuLaunchKernel", kernel, 1, 1, 1, 64, 1, 1, 0, None, (c.c_void_p * 1)(c.addressof(data)), None)
call("cuMemcpyDtoH_v2", values, data, c.c_size_t(256))
assert list(values) == [2 * n for n in range(64)], list(values)
print(f"{total.value >> 20} MiB")
'''


# A worker in another root can close fewer doors behind itself.
CONFINED = ([], ["--confinement", "off"])


def main(root: str = "") -> None:
    """Try it; raises `AssertionError` or `OSError` where something is missing."""
    start = time.monotonic()
    command = str(Path(sys.executable).with_name("gpukernel"))
    with tempfile.TemporaryDirectory() as state:
        up = subprocess.Popen([command, "up", "--simulate", "v100", "--state", state, *CONFINED[bool(root)]])
        try:
            run = [command, "run", "--state", state, "-p", "0.02", "--"]
            run += ["chroot", root, "/usr/bin/python3"] if root else [sys.executable]
            run += ["-c", PROGRAM]
            for _ in range(60):
                done = subprocess.run(run, capture_output=True, text=True)
                if done.returncode == 0 or up.poll() is not None:
                    break
                time.sleep(0.5)
            assert done.stdout.strip() == "655 MiB", (done.stdout, done.stderr)
        finally:
            up.terminate()
            up.wait()
    # What encrypts the data path is loaded by need, and is there only where OpenSSL was built in.
    from gpukernel.remoting.tls import provider

    print(
        f"a kernel ran on 655 MiB; {time.monotonic() - start:.1f} s from nothing to its result; TLS has {provider()}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
