"""Linked images: what the simulated driver's linker, and nvJitLink on a simulated device, hand out for a cubin."""

from __future__ import annotations

import pytest

from tests.native.simgpu_driver.test_driver import out

PARTS = """import struct
def image(*parts): return b"GPUKERNEL LINKED PTX\\n" + b"".join(parts) + b"\\0"
def text(body): return b"%d\\n" % len(body) + body
def binary(body): return b"%d hex\\n" % (2 * len(body)) + body.hex().encode()
def fatbin(payload):
    entry = struct.pack("<HHIQIIIIIIQQQ", 1, 0x101, 64, len(payload), 0, 0, 0, 70, 0, 0, 0, 0, 0)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry) + len(payload)) + entry + payload
def says(image): return d.cuModuleLoadData(image)[0].name.removeprefix("CUDA_ERROR_")
HEAD = b".version 7.0\\n.target sm_70\\n.address_size 64\\n"
OTHER = HEAD + b".visible .entry other() { ret; }"
begin()
"""


def test_every_kind_of_part_is_linked() -> None:
    code = """m = ok(d.cuModuleLoadData(image(text(ADD), binary(fatbin(OTHER + b"\\0")), text(b"!<arch>\\ncuda_device_runtime"))))
print([ok(d.cuModuleGetFunction(m, name)) is not None for name in (b"add", b"other")])"""
    assert out(PARTS + code) == "[True, True]"


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ("text(OTHER)[:-1]", "INVALID_IMAGE"),
        ("binary(fatbin(OTHER))[:-1]", "INVALID_IMAGE"),
        ("b'3 hex\\nabc'", "INVALID_IMAGE"),
        ("b'4 hex\\nab.c'", "INVALID_IMAGE"),
        ("b'4hex\\nabcd'", "INVALID_IMAGE"),
        ("b'99999999999999999999999\\na'", "INVALID_IMAGE"),
        ("b'1x'", "INVALID_IMAGE"),
        # A wrapper is an address in the program, which the driver must not follow.
        ("binary(struct.pack('<IIQQ', 0x466243B1, 1, 4096, 0))", "INVALID_IMAGE"),
        ("text(image(text(OTHER))[:-1])", "INVALID_IMAGE"),
        ("binary(b'\\x7fELF' + bytes(60))", "NO_BINARY_FOR_GPU"),
        ("text(OTHER) + text(OTHER)", "INVALID_PTX"),
    ],
)
def test_a_part_that_is_none_is_refused(parts: str, error: str) -> None:
    assert out(PARTS + f"print(says(image({parts})))") == error


def test_lto_ir_is_told_from_ptx() -> None:
    assert out(PARTS + "print(says(struct.pack('<I', 0x7F4E43ED) + bytes(64)))") == "NO_BINARY_FOR_GPU"


def test_an_archive_whose_size_nobody_says_is_refused_by_its_name() -> None:
    code = """log = ctypes.create_string_buffer(400); options = (ctypes.c_int * 2)(5, 6); values = (ctypes.c_void_p * 2)(ctypes.addressof(log), 400)
error = ctypes.CDLL("libcuda.so.1").cuModuleLoadDataEx(ctypes.byref(ctypes.c_void_p()), b"!<arch>\\nx.o/ 0 0 0 644 3 `\\nabc", 2, options, values)
print(error, b"archive of objects" in log.value)"""
    assert out(PARTS + code) == "200 True"
