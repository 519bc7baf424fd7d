"""Writes the corpora that the fuzzers begin with: ``seeds.py FUZZER FOLDER``.

Made from what the tree has anyway: the PTX of the tests of single instructions, and the files of ``seeds/`` and
``regressions/``.  Images, frames and answers are small and are built here.
"""

from __future__ import annotations

import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
ROWS_IN_ONE_KERNEL = 12


def ptx_seeds() -> Iterator[bytes]:
    """Kernels of a dozen instructions each, products of matrices, and every way out of compiled code."""
    sys.path.insert(0, str(REPOSITORY))
    from tests.native.simgpu_exec.test_instructions import CASES, ROWS

    frame = (CASES / "lane.ptx").read_text()
    kinds: dict[tuple[str, str], list[str]] = {}
    sizes = {"r": ("u32", 4), "f": ("f32", 4), "rd": ("u64", 8), "fd": ("f64", 8)}
    for text, register, *_ in ROWS:
        names = {letter: f"%{register}{n + 1}" for n, letter in enumerate("abcd")}
        kinds.setdefault((register, ""), []).append(text.format(**names))
    for (register, _), bodies in kinds.items():
        kind, size = sizes[register]
        for first in range(0, len(bodies), ROWS_IN_ONE_KERNEL):
            body = "\n".join(bodies[first : first + ROWS_IN_ONE_KERNEL])
            text = frame.replace("SIZE", str(size)).replace("TYPE", kind).replace("BODY", body)
            yield text.replace("%REG", f"%{register}").encode()
    yield from matrix_seeds()
    from tests.native.simgpu_compiler.test_leaving import texts

    yield from (text.encode() for text in texts())


def matrix_seeds() -> Iterator[bytes]:
    """Each product of matrices between loads and stores of its fragments."""
    import numpy as np

    from tests.native.simgpu_exec.fragments import kernel, pack_a, pack_b, pack_c
    from tests.native.simgpu_exec.test_matrix import FORMS

    for m, k, d, a, b, c in FORMS:
        shapes = ((pack_a, (m, k), a), (pack_b, (k, 8), b), (pack_c, (m, 8), c), (pack_c, (m, 8), d))
        *inputs, out = (pack(np.zeros(shape, np.uint64), kind) for pack, shape, kind in shapes)
        name = f"mma.sync.aligned.m{m}n8k{k}.row.col.{d}.{a}.{b}.{c}"
        yield kernel(f"{name} {{out}}, {{0}}, {{1}}, {{2}};", inputs, len(out), 8 * out.itemsize).encode()


def image_seeds() -> Iterator[bytes]:
    """Fat binaries with their entries plain, compressed and cut short; a cubin's headers; linked texts."""
    ptx = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n\0"
    lz4 = bytes([0xF0, len(ptx) - 15]) + ptx  # one run of literals

    def entry(kind: int, payload: bytes, flags: int = 0, full: int = 0, sm: int = 70) -> bytes:
        compressed = len(payload) if full else 0
        head = struct.pack(
            "<HHIQIIHHIQQQQ", kind, 0x101, 64, len(payload), compressed, 64, 0, 7, sm, 0, flags, 0, full
        )
        return head[:64].ljust(64, b"\0") + payload

    def fatbin(*entries: bytes) -> bytes:
        body = b"".join(entries)
        return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body

    tables = struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 64, 120, 0, 64, 56, 1, 64, 1, 0)
    elf = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + tables
    elf += struct.pack("<IIQQQQQQ", 1, 0, 0, 0, 0, 64, 64, 8) + struct.pack(
        "<IIQQQQIIQQ", 0, 1, 0, 0, 0, 64, 0, 0, 0, 0
    )
    yield from (ptx, elf, elf[:100], fatbin(entry(1, ptx)), fatbin(entry(2, elf), entry(1, ptx, sm=80)))
    yield from (fatbin(entry(1, lz4, 0x2000, len(ptx))), fatbin(entry(1, lz4, 0x8000, len(ptx))))
    raw = (1 | len(ptx) << 3).to_bytes(3, "little")  # of Zstandard: a frame of one block
    zstandard = bytes.fromhex("28b52ffd20") + bytes([len(ptx)]) + raw + ptx
    yield fatbin(entry(1, zstandard, 0x8000, len(ptx)))
    yield fatbin(entry(1, b"\x1f" + b"ab\x02\0" * 9, 0x2000, 1000))
    yield fatbin(entry(1, ptx))[:90]
    yield b"GPUKERNEL LINKED PTX\n%d\n%s" % (len(ptx), ptx)
    binary = fatbin(entry(1, ptx)).hex().encode()
    yield b"GPUKERNEL LINKED PTX\n%d hex\n%s28\n!<arch>\ncuda_device_runtime" % (len(binary), binary)
    yield struct.pack("<IIQQ", 0x466243B1, 1, 0, 0) + fatbin(entry(1, ptx))


def _position(call: str) -> int:
    """Return the position of the custom call `call` in the table of calls."""
    sys.path.insert(0, str(REPOSITORY / "gpukernel" / "native" / "codegen"))
    from calls import FIRST_CUSTOM_CALL, read_table

    return read_table().number_of(call) - FIRST_CUSTOM_CALL


def frame_seeds() -> Iterator[bytes]:
    """Yield seeds in the format of frames.cpp: a byte that says what is sent, what that needs, and a byte that is no lie."""
    honest = b"\0"
    alloc = b"\x03" + struct.pack("<H", 100) + honest
    device = b"\x07\0\0" + honest
    load = b"\x04\0\0" + honest
    library = b"\x04\x01\0" + honest
    to_device = b"\x06\x01" + struct.pack("<H", 256) + b"\x01\0" + honest
    to_host = b"\x06\0" + struct.pack("<H", 256) + b"\x01\0" + honest

    def call(index: int, *arguments: bytes) -> bytes:
        return bytes([1, index, len(arguments)]) + b"".join(arguments) + honest

    name, handle = b"\x05\0", b"\x00\x02"
    yield device + alloc + to_device + to_host
    for image in (load, library, b"\x04\0\x01" + honest):
        yield image + b"".join(call(index, handle, name) for index in range(20, 45))
        for index in range(20, 45):
            launch = b"\x05\x03\0\x01\x01\x01\x20\x01\x01\x01\0\0\x01\x01\x04\x20" + honest
            yield alloc + image + call(index, handle, name) + launch + to_host
    for index in range(80):
        yield alloc + call(index, b"\x01\x01\0", b"\x01\x01\0", b"\x06\x40", b"\x00\0")
        yield alloc + call(index, b"\x07\x01\x01", b"\x04\0", b"\x04\0") + call(index, b"\x00\x02")
    array = b"\xff\0" + bytes([8, 8, 0, 7, 0, 2, 1]) + honest
    mipmap = b"\xff\0" + bytes([8, 8, 0, 7, 0, 0, 0, 3]) + honest
    for create in (array, mipmap):
        for handle_at in range(4):
            view = b"\xff\2" + bytes([create is mipmap, 1, handle_at, 4, 4, 1, 1, 1, 2]) + honest
            surface = b"\xff\2" + bytes([0, 1, handle_at, 4, 4, 1, 0]) + honest
            copies = b"\xff\3" + bytes([0, 0, 8, 3, 1, 1, 1, handle_at, 0, 0, 8, 3, 0, 0, 0, 0]) + honest
            copies += b"\xff\3" + bytes([0, 0, 8, 3, 1, 2, 1, handle_at, 0, 0, 8, 3, 0, 0, 0]) + honest
            yield alloc + create + view + surface + copies
            for index in range(66, 110):
                yield alloc + create + view + call(index, b"\0" + bytes([handle_at]), b"\4\0")

    def written(kind: int) -> bytes:
        return bytes([kind, 0, 1, 8]) + struct.pack("<Q", 5)

    # By CUstreamBatchMemOpType: words of both sizes, a barrier, a wait, and what is none.
    for kinds in ((2, 5), (6, 2), (1,), (7,)):
        operations = bytes([0, len(kinds)]) + b"".join(written(kind) for kind in kinds) + b"\0"
        yield alloc + bytes([7, 0, _position("memory_operations")]) + operations + honest + to_host
    yield b"\x07\0\x07" + honest + b"\x04\x02\x02\0" + honest + b"\x07\x01\0\x02\x09" + honest


def answer_seeds() -> Iterator[bytes]:
    """Yield seeds in the format of answers.cpp: the call, then for each answer its kind, its size and its bytes."""
    layout = struct.pack("<IIIIII", 2, 0, 8, 8, 4, 1) + b"k"
    bodies = [
        b"",
        bytes(8),
        bytes(16),
        layout,
        layout[:10],
        struct.pack("<I", 2**32 - 1) * 4,
        b"\0" * 4 + bytes(8),
    ]
    for what in range(16):
        for kind in range(8):
            for body in bodies:
                answer = bytes([kind, 1, len(body)]) + body + struct.pack("<II", 8, 4)
                yield bytes([what]) + answer * 3


def lease_seeds() -> Iterator[bytes]:
    """Yield lease files of both versions and every state, whole and cut off."""
    device = "device 0 unix:/run/data.sock tcp:gpu1:41234 tls:gpu1:41235\n"
    live = f"version 2\nlines 6\nlease 3f2a\nstate live\nsecret {'0123456789abcdef' * 4}\n{device}"
    none = "version 2\nlines 6\nstate none\nkernel k\nsocket /run/user/1000/a b\nreason The pool is full.\n"
    direct = f"version 2\nstate live\ndriver /usr/lib/libcuda.so.1\n{device}"
    for text in (live, none, direct, live.replace("version 2", "version 1"), none.replace("socket", "desk")):
        yield text.encode()
        yield text.encode()[:-20]
    yield b"version 3\n"


def record_seeds() -> Iterator[bytes]:
    """Yield seeds in the format of records.cpp: what is sent, then changes or records with theirs."""
    hello = b"\x16\x03\x01\x00\x40\x01\0\0\x3c\x03\x03" + bytes(56)
    for end in (0, 1):
        yield bytes([end, 0]) + hello
        yield bytes([end, 1, 5]) + hello
    unchanged = b"\x05\0"
    for at in range(0, 250, 10):
        yield b"\x02" + bytes([0, at, 0, 1, 0]) + unchanged * 3
        yield b"\x02" + unchanged + bytes([0, at, 0, 255]) + unchanged * 2
    for length in (0, 1, 100):
        yield b"\x02\1" + bytes([length, 0, 0]) + unchanged
        yield b"\x02\3" + bytes([length, length]) + unchanged
    record = b"\1\5hello" + struct.pack("<H", 300) + bytes(300) + b"\x05"
    for end in (3, 7):
        yield bytes([end, 0]) + record * 3
        yield bytes([end, 1, 0]) + record * 3  # a new key before each
        yield bytes([end, 0]) + record + b"\1\1x\0\0\0\7\0\1"  # changed
        yield bytes([end, 0]) + record + b"\0\0\0\0\5"  # an alert


SEEDS = {
    "ptx": ptx_seeds,
    "images": image_seeds,
    "frames": frame_seeds,
    "answers": answer_seeds,
    "leases": lease_seeds,
    "records": record_seeds,
}


def write(fuzzer: str, folder: Path) -> None:
    """Lay the beginnings of `fuzzer` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(SEEDS[fuzzer]()):
        (folder / f"seed-{number:03}").write_bytes(data)
    for kind in ("seeds", "regressions"):
        for path in sorted((HERE / kind / fuzzer).glob("*")):
            shutil.copyfile(path, folder / f"{kind}-{path.name}")


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
