"""Virtual memory management through shim and worker: the same rules as in process, and the lease's books."""

from __future__ import annotations

import asyncio
import struct

import pytest

from tests.remoting.conftest import AT_ADDRESSES_OF_THE_PROGRAM, MIB, Worker, call_number, worker
from tests.remoting.test_listeners import INVALID_VALUE, OUT_OF_MEMORY, WELCOME, enter, read
from tests.remoting.virtual_memory import FAULT, FAULTS, MEMORY, PROGRAMS

pytestmark = AT_ADDRESSES_OF_THE_PROGRAM

VIRTUAL_MEMORY = call_number("virtual_memory")
GRANULARITY, RESERVE, FREE, CREATE, RELEASE, MAP, UNMAP, SET_ACCESS, GET_ACCESS, RETAIN, SIZE, HANDLE_TYPE = (
    range(12)
)
NOT_SUPPORTED = 801
UNIT = 2 * MIB


async def everything_is_given_back(one: Worker) -> None:
    async with asyncio.timeout(30):  # the worker notices in its own time that a program is gone
        while (await one.handle.status()).memory_used_bytes:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_slice_s_virtual_memory_is_as_documented(what: str) -> None:
    async def story() -> None:
        async with worker() as one:
            code, says = PROGRAMS[what]
            done = await one.run(MEMORY + code)
            assert done.stdout.splitlines() == says, done.stderr
            await everything_is_given_back(one)

    asyncio.run(story())


@pytest.mark.parametrize("what", FAULTS)
def test_an_access_where_nothing_may_be_touched_is_named(what: str) -> None:
    async def story() -> None:
        async with worker() as one:
            done = await one.run(MEMORY + what + FAULT)
            assert done.stdout.splitlines()[-1] == "CUDA_ERROR_ILLEGAL_ADDRESS", done.stderr
            assert FAULTS[what] in done.stdout

    asyncio.run(story())


def test_the_cap_holds_where_memory_is_made_and_mappings_cost_nothing() -> None:
    code = """
print(ok(d.cuDeviceGetAttribute(d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0)), free() // U)
a = reserve(1 << 38); h = create(3 * U); [mapped(a + i * 4 * U, 3 * U, h) for i in range(50)]; print(free() // U)
print(name(d.cuMemCreate(3 * U, prop(), 0)), name(d.cuMemAlloc(3 * U)), name(d.cuMemAlloc(2 * U)), name(d.cuMemCreate(U, prop(), 0)))
ok(d.cuMemRelease(h)); ok(d.cuMemUnmap(a, 3 * U)); print(free() // U)
for i in range(1, 50): ok(d.cuMemUnmap(a + i * 4 * U, 3 * U))
print(free() // U, name(d.cuMemCreate(3 * U, prop(), 0)))
"""

    async def story() -> None:
        async with worker(memory_mib=10) as one:
            done = await one.run(MEMORY + code)
            assert done.stdout.splitlines() == [
                "1 5",
                "2",
                "OUT_OF_MEMORY OUT_OF_MEMORY SUCCESS OUT_OF_MEMORY",
                "0",
                "3 SUCCESS",
            ], done.stderr
            await everything_is_given_back(one)

    asyncio.run(story())


def test_two_programs_do_not_share_handles_and_what_one_had_goes_with_it() -> None:
    first = """
a = reserve(4 * U); h = create(); mapped(a, U, h); ok(d.cuMemsetD8(a, 9, U)); ok(d.cuCtxSynchronize())
print(a, int(h), flush=True); sys.stdin.readline()
"""

    async def story() -> None:
        async with worker(memory_mib=8) as one:
            running = one.start(MEMORY + first)
            assert running.stdout is not None
            assert running.stdin is not None
            address, handle = (await asyncio.to_thread(running.stdout.readline)).split()
            second = f"""
print(name(d.cuMemRelease({handle})), name(d.cuMemUnmap({address}, U)), name(d.cuMemAddressFree({address}, 4 * U)), free() // U)
b = reserve(); print(name(d.cuMemMap(b, U, 0, {handle}, 0))); mapped(b); print(set(read(b, U)))
"""
            done = await one.run(MEMORY + second)
            bad = "INVALID_VALUE"
            assert done.stdout.splitlines() == [f"{bad} {bad} {bad} 3", bad, "{0}"], done.stderr
            running.communicate("\n")
            again = await one.run(
                MEMORY + "print(free() // U); a = reserve(); mapped(a); print(set(read(a, U)))"
            )
            assert again.stdout.splitlines() == ["4", "{0}"], again.stderr

    asyncio.run(story())


def test_one_range_takes_memory_of_either_device_of_a_lease() -> None:
    code = """
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(1)))); a = reserve(2 * U)
print(name(d.cuMemGetAccess(place(0), a))); one, two = create(U, 0), create(U, 1)
ok(d.cuMemMap(a, U, 0, one, 0)); ok(d.cuMemMap(a + U, U, 0, two, 0)); print(name(d.cuMemMap(a, U, 0, two, 0)))
print(name(d.cuMemSetAccess(a, U, access(RW, 1), 1)), name(d.cuMemSetAccess(a, U, access(RW, 0), 1)), name(d.cuMemSetAccess(a + U, U, access(RW, 1), 1)))
print(int(ok(d.cuMemGetAccess(place(0), a))), int(ok(d.cuMemGetAccess(place(1), a))), ok(d.cuMemGetAllocationPropertiesFromHandle(two)).location.id)
ok(d.cuMemsetD8(a + U, 2, U)); print(set(read(a + U, U))); ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0)))); ok(d.cuMemsetD8(a, 1, U)); print(set(read(a, U)))
ok(d.cuMemUnmap(a, 2 * U)); ok(d.cuMemAddressFree(a, 2 * U)); ok(d.cuMemRelease(one)); ok(d.cuMemRelease(two)); print(free() // U)
"""

    async def story() -> None:
        async with worker() as one, worker(secret=one.secret) as two:
            done = await one.run(MEMORY + code, second=two)
            assert done.stdout.splitlines() == [
                "INVALID_VALUE",
                "INVALID_VALUE",
                "INVALID_DEVICE SUCCESS SUCCESS",
                "3 0 1",
                "{2}",
                "{1}",
                "32",
            ], done.stderr

    asyncio.run(story())


def test_a_client_that_lies_about_addresses_sizes_and_handles_gets_an_error_each_time() -> None:
    def asked(one: Worker) -> list[tuple[int, int]]:
        status, sock = enter(one, one.secret)
        assert status == WELCOME

        def ask(operation: int, *arguments: int) -> tuple[int, int]:
            body = struct.pack("<I4Q", operation, *arguments, *[0] * (4 - len(arguments)))
            sock.sendall(struct.pack("<IHH", len(body), VIRTUAL_MEMORY, 0) + body)
            length, call, _ = struct.unpack("<IHH", read(sock, 8))
            assert call == VIRTUAL_MEMORY
            answer = read(sock, length)
            result, printed = struct.unpack("<II", answer[:8])
            assert printed == 0
            return result, int.from_bytes(answer[8:16], "little")

        most = 2**64 - 1
        _, range_ = ask(RESERVE, 4 * UNIT)
        _, memory = ask(CREATE, UNIT)
        lies = [
            ask(RESERVE, most),
            ask(RESERVE, 0),
            ask(RESERVE, 2**44 - UNIT),  # more than is left for one lease
            ask(RESERVE, UNIT, most),
            ask(CREATE, most),
            ask(CREATE, most - UNIT + 1),
            ask(CREATE, 2**63),
            ask(MAP, range_, most - UNIT + 1, 0, memory),
            ask(MAP, range_ + 4 * UNIT - 4096, UNIT, 0, memory),
            ask(MAP, most - UNIT + 1, UNIT, 0, memory),
            ask(MAP, range_, 2 * UNIT, 0, memory),
            ask(MAP, range_, UNIT, most, memory),
            ask(MAP, range_, UNIT, 0, most),
            ask(UNMAP, range_, UNIT),
            ask(UNMAP, 0, most),
            ask(SET_ACCESS, range_, UNIT, 3),
            ask(GET_ACCESS, most),
            ask(RETAIN, range_),
            ask(SIZE, memory + 16),
            ask(HANDLE_TYPE, memory + 16),
            ask(RELEASE, memory + 16),
            ask(FREE, range_, most),
            ask(FREE, range_ + UNIT, 3 * UNIT),
            ask(most % 2**32, 1, 2, 3),
        ]
        assert [ask(CREATE, UNIT, handle_type)[0] for handle_type in (2, most)] == [NOT_SUPPORTED] * 2
        assert ask(HANDLE_TYPE, memory) == (0, 0)
        assert ask(MAP, range_, UNIT, 0, memory)[0] == 0
        lies += [ask(FREE, range_, 4 * UNIT), ask(UNMAP, range_, 2 * UNIT), ask(SET_ACCESS, range_, UNIT, 2)]
        # Left behind, mapped and accessible, by a program that is gone without a word.
        assert ask(SET_ACCESS, range_, UNIT, 3)[0] == 0
        sock.close()
        return lies

    async def story() -> None:
        async with worker() as one:
            before = one.handle.pid
            for result, _ in await asyncio.to_thread(asked, one):
                assert result in (INVALID_VALUE, OUT_OF_MEMORY)
            await everything_is_given_back(one)
            done = await one.run("begin(); print(ok(d.cuMemGetInfo())[0] >> 20)")
            assert done.stdout == "64\n", done.stderr
            assert one.handle.pid == before

    asyncio.run(story())
