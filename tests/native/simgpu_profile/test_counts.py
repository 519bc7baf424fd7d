"""Counts of kernels that somebody has counted by hand: no figure here comes from the code that is tested."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest

from gpukernel.remoting.profile.figures import KernelCount
from gpukernel.remoting.profile.question import begin_profile
from tests.native.simgpu_exec.conftest import compile_cuda
from tests.native.simgpu_profile.conftest import HEAD, LAUNCH, counted
from tests.remoting.conftest import worker


def one(ptx: str, name: str, grid: int, block: object, *values: object, **more: object) -> KernelCount:
    words = ", ".join(
        ["PTX", repr(name), str(grid), repr(block), *map(str, values), *(f"{k}={v}" for k, v in more.items())]
    )
    (found,) = counted(f"PTX = '''{HEAD + ptx}'''\nlaunch({words})")
    assert (found.name, found.failed, found.launches) == (name, 0, more.get("times", 1))
    return found


# 7 instructions before the load; thread i of a block reads the word i * stride + first.
STRIDED = """.visible .entry strided(.param .u64 from, .param .u32 stride, .param .u32 first) {
  .reg .b64 %rd<4>; .reg .b32 %r<6>;
  ld.param.u64 %rd1, [from]; ld.param.u32 %r1, [stride]; ld.param.u32 %r2, [first];
  mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r3, %r1, %r2; mul.wide.u32 %rd2, %r4, 4; add.u64 %rd3, %rd1, %rd2;
  LOAD
  ret; }"""


@pytest.mark.parametrize(
    ("stride", "first", "sectors", "distinct"),
    [
        (1, 0, 4, 128),  # 128 bytes in a row: 4 sectors of 32
        (1, 1, 5, 128),  # the same, 4 bytes further: one sector more
        (2, 0, 8, 128),  # every other word: 256 bytes
        (8, 0, 32, 128),  # a sector each
        (32, 0, 32, 128),
        (0, 5, 1, 4),  # all the same word
    ],
)
def test_loads_touch_so_many_sectors(stride: int, first: int, sectors: int, distinct: int) -> None:
    ptx = STRIDED.replace("LOAD", "ld.global.u32 %r5, [%rd3];")
    found = one(ptx, "strided", 3, 64, "room", f"ctypes.c_uint32({stride})", f"ctypes.c_uint32({first})")
    warps = 3 * 2
    assert found.instructions == 9 * warps
    assert found.lanes == found.executed == 9 * 32 * warps
    assert (found.load_requests, found.load_bytes) == (warps, warps * 128)
    # The second warp of a block begins 32 * stride words further, which is a whole number of sectors.
    assert (found.load_sectors, found.load_distinct) == (warps * sectors, warps * distinct)
    assert found.sectors_per_load == sectors
    assert found.coalescing == distinct / (32 * sectors)
    assert (found.store_requests, found.shared_requests, found.atomic_requests, found.other_memory) == (
        0,
        0,
        0,
        0,
    )
    assert (found.blocks, found.block) == (3, (64, 1, 1))


def test_vectors_of_four_words_are_one_request_of_sixteen_sectors() -> None:
    ptx = STRIDED.replace("LOAD", "ld.global.v4.u32 {%r1, %r2, %r3, %r5}, [%rd3];")
    found = one(ptx, "strided", 1, 32, "room", "ctypes.c_uint32(4)", "ctypes.c_uint32(0)")
    assert (found.load_requests, found.load_bytes, found.load_distinct, found.load_sectors) == (
        1,
        512,
        512,
        16,
    )


def test_a_store_by_a_part_of_a_warp_counts_its_threads_only() -> None:
    """Ten threads of 32 store; a warp that is not full has so many lanes as threads."""
    ptx = """.visible .entry some(.param .u64 to) {
  .reg .b64 %rd<4>; .reg .b32 %r<3>; .reg .pred %p;
  ld.param.u64 %rd1, [to]; mov.u32 %r1, %tid.x; setp.lt.u32 %p, %r1, 10; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;
  @%p st.global.u32 [%rd3], %r1; ret; }"""
    found = one(ptx, "some", 1, 40, "room")
    assert found.instructions == 7 * 2
    assert found.lanes == 7 * 40
    assert found.executed == 6 * 40 + 10
    assert (found.store_requests, found.store_bytes, found.store_sectors) == (1, 40, 2)


BRANCH = """.visible .entry parts(.param .u64 to, .param .u32 bound) {
  .reg .b64 %rd<4>; .reg .b32 %r<5>; .reg .pred %p;
  ld.param.u64 %rd1, [to]; ld.param.u32 %r2, [bound]; mov.u32 %r1, %tid.x; setp.lt.u32 %p, %r1, %r2;
  @%p bra low;
  mov.u32 %r3, 1; mov.u32 %r4, 2; bra end;
low: mov.u32 %r3, 3;
end: ret; }"""


@pytest.mark.parametrize(
    ("bound", "divergent", "instructions", "lanes"),
    [
        # 5 and a ret; both sides, 3 and 1, of a warp that parts.
        (8, 1, 5 + 3 + 1 + 1, 5 * 32 + 3 * 24 + 1 * 8 + 32),
        (32, 0, 5 + 1 + 1, 5 * 32 + 32 + 32),
        (0, 0, 5 + 3 + 1, 5 * 32 + 3 * 32 + 32),
    ],
)
def test_a_branch_diverges_where_a_warp_parts(
    bound: int, divergent: int, instructions: int, lanes: int
) -> None:
    found = one(BRANCH, "parts", 1, 32, "room", f"ctypes.c_uint32({bound})")
    assert (found.branches, found.divergent) == (1, divergent)
    assert (found.instructions, found.lanes) == (instructions, lanes)
    assert found.lane_share == pytest.approx(lanes / (32 * instructions))


def transpose(width: int) -> str:
    """A column of a tile of shared memory, `width` words a row."""
    return f""".visible .entry column(.param .u64 to) {{
  .shared .align 4 .b8 tile[{4 * 32 * width}];
  .reg .b64 %rd<4>; .reg .b32 %r<8>;
  ld.param.u64 %rd1, [to]; mov.u32 %r1, %tid.x; mov.u32 %r2, tile;
  mad.lo.u32 %r3, %r1, {4 * width}, %r2;
  st.shared.u32 [%r3], %r1; bar.sync 0;
  shl.b32 %r4, %r1, 2; add.u32 %r5, %r4, %r2; ld.shared.u32 %r6, [%r5];
  ret; }}"""


@pytest.mark.parametrize(("width", "passes"), [(32, 32), (33, 1), (16, 16), (2, 2), (1, 1)])
def test_a_column_of_a_tile_conflicts_and_a_padded_one_does_not(width: int, passes: int) -> None:
    """Rows of 32 words lie in the same banks; one word more moves each row on by one."""
    found = one(transpose(width), "column", 2, 32, "room")
    assert found.shared_requests == 2 * 2  # a store by columns, a load by rows
    assert (found.shared_passes, found.shared_least) == (2 * (passes + 1), 2 * 2)
    assert found.bank_conflicts == 2 * (passes - 1)
    assert found.barriers == 2
    assert found.shared_memory_bytes == 4 * 32 * width


def test_one_word_for_all_is_no_conflict_and_long_words_need_two_passes() -> None:
    ptx = """.visible .entry shared(.param .u64 to) {
  .shared .align 8 .b8 tile[1024]; .reg .b32 %r<8>; .reg .b64 %rd<4>;
  mov.u32 %r1, %tid.x; mov.u32 %r2, tile; LOADS ret; }"""
    same = one(ptx.replace("LOADS", "ld.shared.u32 %r3, [%r2+64];"), "shared", 1, 32, "room")
    assert (same.shared_passes, same.shared_least, same.shared_bytes) == (1, 1, 128)
    wide = one(
        ptx.replace("LOADS", "shl.b32 %r3, %r1, 3; add.u32 %r3, %r3, %r2; ld.shared.u64 %rd1, [%r3];"),
        "shared",
        1,
        32,
        "room",
    )
    assert (wide.shared_passes, wide.shared_least, wide.shared_bytes) == (2, 2, 256)


def test_atomics_take_turns_where_threads_share_an_address() -> None:
    ptx = """.visible .entry histogram(.param .u64 to, .param .u32 bins) {
  .reg .b64 %rd<4>; .reg .b32 %r<5>;
  ld.param.u64 %rd1, [to]; ld.param.u32 %r1, [bins]; mov.u32 %r2, %tid.x; rem.u32 %r3, %r2, %r1;
  mul.wide.u32 %rd2, %r3, 4; add.u64 %rd3, %rd1, %rd2; red.global.add.u32 [%rd3], 1; ret; }"""
    for bins, turns in ((32, 1), (8, 4), (1, 32)):
        found = one(ptx, "histogram", 1, 32, "room", f"ctypes.c_uint32({bins})")
        assert (found.atomic_requests, found.atomic_threads, found.atomic_turns) == (1, 32, turns)
        assert found.load_requests == found.store_requests == 0


def test_generic_addresses_count_where_they_lead() -> None:
    ptx = """.visible .entry generic(.param .u64 to) {
  .shared .align 4 .b8 tile[128]; .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .pred %p;
  ld.param.u64 %rd1, [to]; mov.u32 %r1, %tid.x; mov.u64 %rd2, tile; cvta.shared.u64 %rd3, %rd2;
  setp.lt.u32 %p, %r1, 16; selp.b64 %rd4, %rd3, %rd1, %p; mul.wide.u32 %rd5, %r1, 4; add.u64 %rd6, %rd4, %rd5;
  ld.u32 %r2, [%rd6]; ret; }"""
    found = one(ptx, "generic", 1, 32, "room")
    assert (found.shared_requests, found.shared_bytes, found.shared_passes) == (1, 64, 1)
    assert (found.load_requests, found.load_bytes, found.load_sectors) == (1, 64, 2)


def test_calls_and_exchanges_are_one_instruction_each() -> None:
    """Arguments travel in registers on a GPU, so passing them is no access of local memory."""
    ptx = """.func (.param .u32 r) twice(.param .u32 x) { .reg .b32 %r<3>; ld.param.u32 %r1, [x]; add.u32 %r2, %r1, %r1; st.param.u32 [r], %r2; ret; }
.visible .entry calls(.param .u64 to) {
  .reg .b32 %r<5>; .reg .b64 %rd<2>; .reg .pred %p;
  mov.u32 %r1, %tid.x;
  { .param .u32 a; .param .u32 b; st.param.u32 [a], %r1; call.uni (b), twice, (a); ld.param.u32 %r2, [b]; }
  shfl.sync.idx.b32 %r3, %r2, 0, 31, -1;
  bar.warp.sync -1;
  ret; }"""
    found = one(ptx, "calls", 1, 32, "room")
    # mov, st.param, call, [ld.param, add, st.param, ret], ld.param, shfl, bar.warp.sync, ret
    assert found.instructions == 11
    assert found.executed == 11 * 32
    assert (found.local_requests, found.local_bytes) == (0, 0)


def test_local_and_constant_memory_have_counts_of_their_own() -> None:
    ptx = """.const .align 4 .b8 table[128];
.visible .entry places(.param .u64 to) {
  .local .align 4 .b8 own[16]; .reg .b32 %r<5>; .reg .b64 %rd<4>;
  mov.u32 %r1, %tid.x; st.local.u32 [own+4], %r1; ld.local.u32 %r2, [own+4]; ld.const.u32 %r3, [table+8]; ret; }"""
    found = one(ptx, "places", 1, 32, "room")
    assert (found.local_requests, found.local_bytes, found.constant_requests) == (2, 256, 1)
    assert (found.load_requests, found.store_requests) == (0, 0)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks", "limit"),
    [
        # A V100's multiprocessor has 2,048 threads, 65,536 registers, 96 KiB of shared memory and 32 blocks.
        (256, 16, 0, 8, "threads"),
        (32, 16, 0, 32, "blocks"),
        (256, 128, 0, 0, "registers"),
        (64, 16, 24 << 10, 4, "shared memory"),
    ],
)
def test_occupancy_follows_from_what_a_block_takes(
    threads: int, registers: int, shared: int, blocks: int, limit: str
) -> None:
    body = "".join(f"ld.global.u32 %r{n}, [%rd1+{4 * n}];" for n in range(registers - 4))
    used = "".join(f"add.u32 %r0, %r0, %r{n};" for n in range(1, registers - 4))
    ptx = f""".visible .entry full(.param .u64 from) {{ .reg .b64 %rd<2>; .reg .b32 %r<{registers}>;
  ld.param.u64 %rd1, [from]; {body if registers > 16 else ""} {used if registers > 16 else ""} ret; }}"""
    found = one(ptx, "full", 1, threads, "room", shared=shared)
    if limit == "registers":  # their number is an estimate
        assert found.registers > 32
        blocks = 65536 // (found.registers * threads)
    assert (found.resident_blocks, found.limit) == (blocks, limit)
    assert found.occupancy == blocks * (threads // 32) / 64


def test_lines_of_the_source_add_up_to_all_instructions() -> None:
    source = """extern "C" __global__ void rows(float* out, const float* in, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; ++k)
        sum += in[i * n + k];
    out[i] = sum;
}
"""
    ptx = compile_cuda(source, "--generate-line-info")
    (found,) = counted(f"PTX = {ptx!r}\nlaunch(PTX, 'rows', 2, 64, room + 65536, room, ctypes.c_int(16))")
    assert sum(line.instructions for line in found.lines) == found.instructions
    assert {line.file for line in found.lines} == {"kernel.cu"}
    assert {line.line for line in found.lines[:2]} == {4, 5}  # the loop is where the time goes
    assert found.load_requests == 16 * 4
    assert found.sectors_per_load == 32  # each thread reads a row of its own
    assert (found.store_requests, found.sectors_per_store) == (4, 4)


def test_results_are_those_of_a_run_that_nobody_counts() -> None:
    """A program of many kinds of instructions, run both ways in one worker."""
    source = """extern "C" __global__ void mixed(unsigned* out, const float* in) {
    __shared__ float tile[64];
    int t = threadIdx.x, i = blockIdx.x * 64 + t;
    tile[t] = in[i]; __syncthreads();
    float sum = 0;
    for (int k = 0; k <= t; ++k) sum = sum * 0.5f + tile[k] * tile[63 - k];
    sum += __shfl_xor_sync(0xffffffffu, sum, 5);
    if (t % 3) sum = sinf(sum); else atomicAdd(out + 4096, 1u);
    out[i] = __float_as_uint(sum) ^ __ballot_sync(0xffffffffu, sum > 0);
}
"""
    ptx = compile_cuda(source)
    code = (
        f"PTX = {ptx!r}\n"
        + """
import array
values = array.array("f", [0.37 * i - 3 for i in range(256)])
ok(d.cuMemcpyHtoD(room, values.buffer_info()[0], 1024)); ok(d.cuMemsetD8(room + 4096, 0, 65536))
launch(PTX, "mixed", 4, 64, room + 4096, room)
got = (ctypes.c_uint32 * 4097)(); ok(d.cuMemcpyDtoH(ctypes.addressof(got), room + 4096, 4 * 4097))
import hashlib; open(os.environ["HASH"], "a").write(hashlib.sha256(bytes(got)).hexdigest() + chr(10))
"""
    )

    async def story() -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "hashes")
            async with worker() as one_worker:
                for counts in (False, True):
                    if counts:
                        await asyncio.to_thread(
                            begin_profile, [one_worker.handle.endpoints], one_worker.secret
                        )
                    done = await one_worker.run(
                        f"import os; os.environ['HASH'] = {str(path)!r}\n" + LAUNCH + code
                    )
                    assert done.returncode == 0, done.stderr
            return await asyncio.to_thread(lambda: path.read_text().split())

    plain, watched = asyncio.run(story())
    assert plain == watched
