"""Which leases give way: enough, none in vain, and the fewest that cost the least."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gpukernel.pool.domain.giving_way import Candidate, leases_giving_way

DEVICES = "xyz"


def room(free: dict[str, int], sizes: dict[str, int], leave: list[Candidate]) -> int:
    """Devices with room once these have left."""
    return sum(
        free.get(device, 0) + sum(one.pieces.get(device, 0) for one in leave) >= size
        for device, size in sizes.items()
    )


def cost(leave: list[Candidate]) -> tuple[int, int]:
    return sum(not one.scavenger for one in leave), sum(one.scavenger for one in leave)


_on_some = st.dictionaries(st.sampled_from(DEVICES), st.integers(1, 8), min_size=1)
_on_one = st.tuples(st.sampled_from(DEVICES), st.integers(1, 8)).map(lambda piece: dict([piece]))
_free = st.dictionaries(st.sampled_from(DEVICES), st.integers(0, 10))
_sizes = st.dictionaries(st.sampled_from(DEVICES), st.integers(1, 16), min_size=1)


def several(pieces: st.SearchStrategy[dict[str, int]]) -> st.SearchStrategy[list[Candidate]]:
    line = st.lists(st.tuples(st.booleans(), pieces), max_size=8)
    return line.map(lambda rows: [Candidate(f"l{n}", low, n, where) for n, (low, where) in enumerate(rows)])


@given(_free, _sizes, st.integers(1, 3), several(_on_some))
def test_who_gives_way_makes_room_and_nobody_does_in_vain(
    free: dict[str, int], sizes: dict[str, int], count: int, there: list[Candidate]
) -> None:
    leave = leases_giving_way(free, sizes, count, there)
    if leave is None:
        assert room(free, sizes, there) < count
        return
    assert room(free, sizes, leave) >= count
    for size in range(len(leave)):
        for some in itertools.combinations(leave, size):
            assert room(free, sizes, list(some)) < count


@given(_free, _sizes, st.integers(1, 3), several(_on_one))
def test_no_other_choice_costs_less_where_leases_lie_on_one_device(
    free: dict[str, int], sizes: dict[str, int], count: int, there: list[Candidate]
) -> None:
    leave = leases_giving_way(free, sizes, count, there)
    if leave is None:
        return
    some = (itertools.combinations(there, size) for size in range(len(there) + 1))
    enough = [list(one) for one in itertools.chain(*some) if room(free, sizes, list(one)) >= count]
    assert cost(leave) == min(map(cost, enough))


def test_the_youngest_of_equals_gives_way() -> None:
    there = [Candidate(f"l{n}", False, n, {"x": 4}) for n in range(4)]
    assert [one.lease for one in leases_giving_way({}, {"x": 4}, 1, there) or []] == ["l3"]
    assert {one.lease for one in leases_giving_way({}, {"x": 8}, 1, there) or []} == {"l2", "l3"}
    # A larger old one where the younger are not enough; of those that are enough, the youngest.
    there = [Candidate("old", False, 1, {"x": 8}), Candidate("middle", False, 2, {"x": 6})]
    there.append(Candidate("young", False, 3, {"x": 2}))
    assert [one.lease for one in leases_giving_way({}, {"x": 6}, 1, there) or []] == ["middle"]
    # A scavenger before batch, and one device before another where its leases are younger.
    there = [Candidate("batch", False, 9, {"x": 4}), Candidate("scavenger", True, 1, {"x": 4})]
    assert [one.lease for one in leases_giving_way({}, {"x": 4}, 1, there) or []] == ["scavenger"]
    there = [Candidate("old", False, 1, {"x": 4}), Candidate("young", False, 2, {"y": 4})]
    assert [one.lease for one in leases_giving_way({}, {"x": 4, "y": 4}, 1, there) or []] == ["young"]
    assert leases_giving_way({"x": 4}, {"x": 4}, 1, there) == []
    assert leases_giving_way({}, {"x": 5}, 1, there) is None
