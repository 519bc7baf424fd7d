"""The rules of fencing, one by one: who may speak for a GPU server, and how long its memory is fenced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpukernel.agent.validity import Epochs, Validity, Wakefulness
from gpukernel.common.errors import Refused
from gpukernel.pool.domain.fencing import (
    DRIFT,
    LARGEST_EPOCH,
    SILENT_SECONDS,
    STOP_SECONDS,
    KnownServer,
    LateRegistration,
    Registration,
    binding_refusal,
    enrolled_with,
    epoch_of,
    fence_seconds,
    may_replace,
    missing_are_dead,
    refuse_late,
    rival_refusal,
)

KNOWN = KnownServer("gpu1", "token gpk1", "machine", "place", "one", 3, heard=100.0, attached=True)
SAME = Registration("token gpk1", "machine", "place", "one", 3)


@pytest.mark.parametrize("valid", [5.0, 300.0, 86400.0])
@pytest.mark.parametrize("pool", [1 - DRIFT, 1 + DRIFT])
@pytest.mark.parametrize("agent", [1 - DRIFT, 1 + DRIFT])
def test_a_fence_outlasts_every_worker_whatever_the_clocks_do(
    valid: float, pool: float, agent: float
) -> None:
    worker_lives, fence_lasts = valid / agent + STOP_SECONDS, fence_seconds(valid) / pool
    assert fence_lasts >= worker_lives


@pytest.mark.parametrize(
    ("new", "words"),
    [
        (SAME, ""),
        (replace(SAME, credential="token gpk2"), "enrolled with another credential (token gpk1)"),
        (replace(SAME, machine="other"), "enrolled on another machine (machine)"),
        (replace(SAME, machine=""), "enrolled on another machine"),
    ],
)
def test_another_credential_or_machine_is_refused_with_what_the_administrator_can_do(
    new: Registration, words: str
) -> None:
    said = binding_refusal(KNOWN, new, "gpu1", "gpu1")
    assert (words in said) if words else not said
    assert not words or "gpukernel server reset gpu1" in said


def test_a_token_is_bound_to_one_server_and_accounts_of_administrators_are_one() -> None:
    assert "bound to GPU server gpu1" in binding_refusal(None, SAME, "gpu1", "gpu2")
    local = replace(KNOWN, credential="account 1000")
    assert not binding_refusal(local, replace(SAME, credential="account 0", machine="moved"), "", "gpu1")
    assert binding_refusal(KNOWN, replace(SAME, credential="account 0"), "", "gpu1")


def test_a_token_of_many_servers_is_bound_with_the_state_directory_and_those_of_one_are_not() -> None:
    assert enrolled_with("token gpk1", "secret") == "token gpk1"
    assert enrolled_with("account 0", "secret") == "account 0"
    assert enrolled_with("agent.token", "") == "agent.token"
    first, second = (enrolled_with("agent.token", proof) for proof in ("one", "two"))
    assert first.startswith("agent.token ")
    assert first != second
    assert "one" not in first
    known, new = replace(KNOWN, credential=first), replace(SAME, credential=first)
    assert not binding_refusal(known, new, "", "gpu1")
    for other in (second, "agent.token"):
        said = binding_refusal(known, replace(new, credential=other), "", "gpu1")
        assert "enrolled from another state directory" in said
        assert "gpukernel server reset gpu1" in said
    # An older agent enrolled it; from now on it is bound.
    assert not binding_refusal(replace(KNOWN, credential="agent.token"), new, "", "gpu1")
    elsewhere = replace(new, machine="other")
    assert "another machine" in binding_refusal(
        replace(KNOWN, credential="agent.token"), elsewhere, "", "gpu1"
    )
    assert "with another credential" in binding_refusal(
        known, replace(SAME, credential="token x"), "", "gpu1"
    )
    assert "with another credential" in binding_refusal(KNOWN, new, "", "gpu1")


def test_a_rival_waits_until_the_first_is_silent_and_its_own_successor_does_not() -> None:
    rival = replace(SAME, place="elsewhere", instance="two")
    assert "was heard of 2 s ago" in rival_refusal(KNOWN, rival, 102.0)
    assert not rival_refusal(KNOWN, rival, 100.0 + SILENT_SECONDS)
    assert may_replace(KNOWN, replace(SAME, place="elsewhere"))  # the same process connects again
    assert may_replace(KNOWN, replace(SAME, instance="two"))  # another one holds its state directory
    assert not may_replace(KNOWN, Registration())


def test_a_registration_counts_where_its_agent_knows_the_newest_epoch() -> None:
    """One that waited in a partition lists none of the workers that were started meanwhile."""
    refuse_late(None, SAME)
    refuse_late(KNOWN, SAME)
    refuse_late(KNOWN, replace(SAME, epoch=9))
    refuse_late(KNOWN, Registration())  # of a version that says nothing about itself
    for late in (replace(SAME, epoch=2), replace(SAME, instance="two", epoch=0)):
        with pytest.raises(LateRegistration) as refused:
            refuse_late(KNOWN, late)
        assert refused.value.epoch == KNOWN.epoch


def test_an_epoch_that_no_pool_has_told_is_refused_and_one_that_this_pool_has_is_not() -> None:
    far = replace(KNOWN, epoch=LARGEST_EPOCH + 5)
    refuse_late(far, replace(SAME, epoch=LARGEST_EPOCH + 5))
    for known, epoch in ((far, LARGEST_EPOCH + 6), (KNOWN, LARGEST_EPOCH + 1), (None, LARGEST_EPOCH + 1)):
        with pytest.raises(Refused, match=f"epoch of {epoch} comes from no pool"):
            refuse_late(known, replace(SAME, epoch=epoch))


def test_each_attachment_has_an_epoch_of_its_own() -> None:
    assert epoch_of(KNOWN, SAME) == 4
    assert epoch_of(KNOWN, replace(SAME, instance="two")) == 4
    assert epoch_of(KNOWN, replace(SAME, epoch=9)) == 10  # the pool's books are older than what it has seen
    assert epoch_of(None, SAME) == 4


def test_only_an_agent_of_the_same_place_knows_who_is_dead() -> None:
    assert missing_are_dead(KNOWN, SAME)
    assert not missing_are_dead(KNOWN, replace(SAME, place="elsewhere"))
    assert not missing_are_dead(KNOWN, Registration())


def test_workers_live_from_when_the_heartbeat_was_sent() -> None:
    now = 0.0
    validity = Validity(lambda: now)
    assert not validity.over()  # a pool of version 0.2 says nothing
    validity.sent(1)
    now = 50.0
    validity.sent(2)
    now = 90.0
    validity.answered(1, 60.0)
    assert validity.until == 60.0
    assert validity.over()
    validity.answered(2, 60.0)
    assert not validity.over()
    validity.answered(2, 1e9)  # answered already
    validity.answered(7, 1e9)  # never sent
    assert validity.until == 110.0


def test_orders_of_a_pool_that_was_overtaken_are_refused() -> None:
    epochs = Epochs(5)
    assert epochs.admit(0)  # of version 0.2
    assert not epochs.admit(4)
    assert epochs.admit(6)
    assert not epochs.admit(5)
    assert not epochs.admit(0)


def test_no_worker_starts_soon_after_the_machine_slept() -> None:
    boot = awake = 0.0
    wakefulness = Wakefulness(lambda: boot, lambda: awake)
    assert wakefulness.wait() == 0
    boot, awake = 100.0, 40.0
    assert wakefulness.wait() == 10
    boot, awake = 106.0, 46.0
    assert wakefulness.wait() == 4
    boot, awake = 111.0, 51.0
    assert wakefulness.wait() == 0


def test_an_agent_that_begins_after_a_sleep_waits_where_workers_may_live() -> None:
    assert Wakefulness(lambda: 100.0, lambda: 40.0).wait() == 10
    assert Wakefulness(lambda: 100.0, lambda: 40.0, others=False).wait() == 0
    assert Wakefulness(lambda: 100.0, lambda: 100.0).wait() == 0  # it never slept
