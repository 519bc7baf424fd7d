"""Connections: strangers have few places, and none of those of the admitted."""

from __future__ import annotations

import asyncio

from gpukernel.pool.doors.connections import CONNECTIONS_OF_ONE, STRANGER_SECONDS, Arrival, Connections


def arrive(there: Connections, address: str, count: int, gone: list[str]) -> list[Arrival]:
    made = []
    for number in range(count):
        peer = f"{address} {number}"
        made.append(Arrival(peer, address, lambda peer=peer: gone.append(peer)))  # type: ignore[misc]
        there.opened(made[-1])
    return made


def test_the_oldest_stranger_of_an_address_goes_and_no_other_s() -> None:
    async def work() -> None:
        there, gone = Connections(100, 10), list[str]()
        (anna,) = arrive(there, "account 1000", 1, gone)
        arrive(there, "address 1.2.3.4", 13, gone)
        assert gone == [f"address 1.2.3.4 {n}" for n in range(3)]
        assert there.of(anna.peer) is anna
        assert there.strangers() == 11

    asyncio.run(work())


def test_strangers_of_many_addresses_take_no_place_of_the_admitted() -> None:
    async def work() -> None:
        there, gone = Connections(20, 10), list[str]()
        (anna,) = arrive(there, "account 1000", 1, gone)
        there.admit(anna, "anna", trusted=False)
        for number in range(50):
            arrive(there, f"address {number}", 1, gone)
        assert len(gone) == 30
        assert there.strangers() == 20
        assert there.of(anna.peer) is anna

    asyncio.run(work())


def test_one_person_has_a_bounded_number_of_admitted_connections() -> None:
    async def work() -> None:
        there, gone = Connections(), list[str]()
        for one in arrive(there, "account 1000", CONNECTIONS_OF_ONE + 2, gone):
            there.admit(one, "anna", trusted=False)
        assert gone == ["account 1000 0", "account 1000 1"]
        for one in arrive(there, "account 1001", CONNECTIONS_OF_ONE + 2, gone):
            there.admit(one, "hub", trusted=True)
        assert len(gone) == 2

    asyncio.run(work())


def test_a_stranger_who_proves_nothing_goes_after_a_while() -> None:
    async def work() -> None:
        there, gone = Connections(), list[str]()
        silent, anna = arrive(there, "account 1000", 2, gone)
        there.admit(anna, "anna", trusted=False)
        there.expire(asyncio.get_running_loop().time() + STRANGER_SECONDS + 1)
        assert gone == [silent.peer]
        assert len(there) == 1

    asyncio.run(work())


def test_where_there_are_few_descriptors_strangers_have_fewer_places() -> None:
    assert Connections.within(1024)._strangers_at_most * 3 <= 512
    assert Connections.within(10**6)._strangers_at_most == 512
