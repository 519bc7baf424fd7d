"""Rates of calls: each identity has its own, a crowd behind one service is counted as its people."""

from __future__ import annotations

import asyncio

import pytest

from gpukernel.pool.doors import call_rates
from gpukernel.pool.doors.call_rates import CallRates, Identified, TooMany

ANNA, BEN, CARL, HUB, ROOT = (
    Identified("anna"),
    Identified("ben"),
    Identified("carl"),
    Identified("hub", trusted=True, speaks=True),
    Identified("root", counted=False),
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_person_who_calls_too_often_is_told_when_to_call_again(clock: Clock) -> None:
    rates = CallRates(2, 3, clock)
    for _ in range(3):
        rates.take(ANNA, "", 1)
    with pytest.raises(
        TooMany, match=r"anna calls .* 2 calls a second .* 3 at once; try again in 0.5 s"
    ) as no:
        rates.take(ANNA, "", 1)
    clock.now += no.value.seconds
    rates.take(ANNA, "", 1)
    with pytest.raises(TooMany):
        rates.take(ANNA, "", 1)
    rates.take(Identified("ben"), "", 1)  # is another


def test_a_service_s_calls_count_for_those_on_whose_behalf_they_are_made(clock: Clock) -> None:
    rates = CallRates(1, 2, clock)
    for number in range(200):
        rates.take(HUB, f"student {number}", 1)
    rates.take(HUB, "anna", 1)
    rates.take(HUB, "anna", 1)
    with pytest.raises(TooMany, match="anna calls"):
        rates.take(ANNA, "", 1)  # she is one person, whichever way she comes
    for _ in range(50):
        rates.take(HUB, "", 1)  # for nobody in particular


def test_a_name_that_a_person_gives_does_not_count_for_another(clock: Clock) -> None:
    rates = CallRates(1, 1, clock)
    rates.take(ANNA, "ben", 1)
    with pytest.raises(TooMany, match="anna"):
        rates.take(ANNA, "ben", 1)
    rates.take(Identified("ben"), "", 1)


def test_administrators_are_not_counted_and_open_calls_are(clock: Clock) -> None:
    rates = CallRates(1, 1, clock)
    for _ in range(1000):
        rates.take(ROOT, "", 1)
        rates.begin(ROOT, "")
    ends = [rates.begin(ANNA, "") for _ in range(call_rates.OPEN_CALLS)]
    with pytest.raises(TooMany, match="has 200 calls open"):
        rates.begin(ANNA, "")
    ends.pop()()
    rates.begin(HUB, "anna")


def test_the_buckets_of_a_crowd_are_forgotten_once_they_are_full(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_rates, "MOST_KEPT", 10)
    rates = CallRates(1, 2, clock)
    for number in range(100):
        clock.now += 1
        rates.take(Identified(f"{number}"), "", 1)
    assert len(rates._buckets) <= 20


def test_one_call_of_a_person_is_on_its_way_and_those_who_made_many_share_a_turn(clock: Clock) -> None:
    async def work() -> None:
        rates = CallRates(1, 500, clock)
        began: list[str] = []
        ends = {}

        async def call(who: Identified, name: str) -> None:
            ends[name] = await rates.turn(who, "")
            began.append(name)

        async with asyncio.TaskGroup() as calls:

            async def asks(who: Identified, name: str) -> None:
                calls.create_task(call(who, name))
                for _ in range(3):
                    await asyncio.sleep(0)

            await asks(ANNA, "anna 1")
            await asks(ANNA, "anna 2")
            await asks(BEN, "ben 1")
            await asks(ROOT, "root")
            assert began == ["anna 1", "ben 1", "root"]
            for end in (ends["anna 1"], ends["anna 1"]):  # a second time ends nobody else's
                end()
            await asks(ANNA, "anna 3")
            assert began[3:] == ["anna 2"]
            ends["anna 2"]()
            ends["ben 1"]()
            await asyncio.sleep(0)
            ends["anna 3"]()

            for who in (ANNA, BEN):
                rates.take(who, "", call_rates.CALLS_IN_TURN + 1)
            await asks(ANNA, "anna 4")
            await asks(BEN, "ben 2")
            await asks(CARL, "carl")
            assert began[5:] == ["anna 4", "carl"], "ben made many calls, too: his is in one turn with hers"
            ends["anna 4"]()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert began[7:] == ["ben 2"]
            given_up = asyncio.create_task(call(BEN, "ben 3"))
            await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.sleep(0)
            for end in ends.values():
                end()
        assert not rates._turns
        assert not rates._busy.locked()

    asyncio.run(work())


def test_who_has_many_calls_refused_at_a_time_is_answered_the_later_the_more_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        slept: list[float] = []
        over = asyncio.Event()

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            await over.wait()

        rates = CallRates()
        for _ in range(int(call_rates.PATIENT_REFUSALS)):
            assert await rates.hold_back("flooder")
        monkeypatch.setattr(call_rates.asyncio, "sleep", sleep)
        late = [asyncio.ensure_future(rates.hold_back("flooder")) for _ in range(call_rates.LATE_AT_MOST)]
        while len(slept) < len(late):
            await asyncio.wait(late, timeout=0.01)
        assert slept[0] == call_rates.LATE_SECONDS
        assert slept == sorted(slept)
        assert slept[-1] == call_rates.LATE_AT_MOST / call_rates.LATE_PER_SECOND > call_rates.LATE_SECONDS
        assert not await rates.hold_back("flooder")  # the connection goes
        assert await rates.hold_back("another")
        over.set()
        assert all(await asyncio.gather(*late))
        slept.clear()
        await rates.hold_back("flooder")
        assert slept == [call_rates.LATE_SECONDS]  # nothing is left of it

    asyncio.run(work())
