"""Devices as agents report them: the same by UUID, whatever their numbers, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
import sqlalchemy as sa

from gpukernel.common.model import Device, Holder
from gpukernel.pool.auth.tokens import create_token
from gpukernel.pool.domain.fencing import LateRegistration, Registration
from gpukernel.pool.domain.placement import Placement
from gpukernel.pool.store import schema
from gpukernel.pool.store.device_reports import GONE
from gpukernel.pool.store.servers import Attachment
from gpukernel.pool.store.store import Store
from tests.pool.store.older_databases import make_previous

GIB = 2**30
A, B, C = (f"GPU-{letter * 8}-0000-0000-0000-{letter * 12}" for letter in "abc")
WHO = Registration("account 0", "machine", "place", "process")


def device(index: int, uuid: str = "", name: str = "Tesla V100", server: str = "s") -> Device:
    return Device(f"{server}/{uuid or index}", server, index, name, 32 * GIB, uuid=uuid)


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    found = Store(database)
    found.clock.start()
    yield found
    found.close()


def report(store: Store, found: Iterable[Device], server: str = "s", who: Registration = WHO) -> Attachment:
    try:
        return store.servers.register(server, found, "pool", store.clock.steady(), new=who)
    except LateRegistration as late:  # the agent's next attachment
        return report(store, found, server, replace(who, epoch=late.epoch))


def grant(store: Store, label: str, key: str = "k") -> str:
    """Give 16 GiB of a device away; return the lease."""
    (one,) = (d for d in store.devices.all() if d.label == label)
    with store.deciding() as (db, row):
        placed = [Placement(one, 16 * GIB)]
        policy = store.policy.current(db, row.policy_version)
        return store.leases.grant(db, policy, key, Holder("anna"), "", placed, 20, 0, 0.0, 0.0).id


def where(store: Store, lease: str) -> tuple[str, str]:
    found = store.leases.get(lease)
    assert found is not None
    return found.slices[0].label, found.slices[0].uuid


def labels(store: Store) -> dict[str, tuple[str, int, str]]:
    return {d.label: (d.uuid, d.promised_bytes // GIB, d.trouble) for d in store.devices.all()}


def written_down(store: Store) -> list[tuple[str, ...]]:
    with store.reader.connect() as db:
        return [tuple(row)[2:] for row in db.execute(sa.select(schema.audit).order_by(schema.audit.c.id))]


def test_devices_that_are_counted_anew_keep_their_leases(store: Store) -> None:
    report(store, [device(0, A), device(1, B), device(2, C)])
    lease = grant(store, "s/1")
    attachment = report(store, [device(0, B), device(1, C), device(2, A)])
    assert where(store, lease) == ("s/0", B)
    assert attachment.gone == ()
    assert attachment.device("", 0) == attachment.device(B, 7) == f"s/{B}"
    assert labels(store) == {"s/0": (B, 16, ""), "s/1": (C, 0, ""), "s/2": (A, 0, "")}
    assert written_down(store) == []


def test_a_device_that_is_gone_is_out_of_use_until_it_is_there_again(store: Store) -> None:
    report(store, [device(0, A), device(1, B), device(2, C)])
    lease = grant(store, "s/1")
    attachment = report(store, [device(0, A), device(1, C)])
    (gone,) = attachment.gone
    assert gone.reason("s") == f"its device s/1 ({B}) is gone from GPU server s"
    assert where(store, lease) == ("s/1", B)
    assert [(d.uuid, d.label, d.trouble) for d in store.devices.all() if not d.available] == [
        (B, "s/1", GONE)
    ]
    assert [d.uuid for d in store.devices.all() if d.available] == [A, C]  # C has its number by now
    store.servers.note_faults("s", {})  # which knows nothing of it
    assert report(store, [device(0, A), device(1, C)]).gone == attachment.gone
    assert report(store, [device(0, B), device(1, A), device(2, C)]).gone == ()
    assert labels(store) == {"s/0": (B, 16, ""), "s/1": (A, 0, ""), "s/2": (C, 0, "")}
    assert written_down(store) == [
        ("agent of s", "device", "s/1", B, GONE),
        ("agent of s", "device", "s/0", GONE, f"there again {B}"),
    ]


def test_a_device_that_nobody_ever_had_leaves_nothing_behind(store: Store) -> None:
    report(store, [device(0, A), device(1, B)])
    assert report(store, [device(0, B)]).gone == ()
    assert labels(store) == {"s/0": (B, 0, "")}


def test_what_is_out_of_order_is_so_under_its_new_number(store: Store) -> None:
    report(store, [device(0, A), device(1, B)])
    assert store.servers.note_faults("s", {f"s/{B}": "the fan rattles"}) == {f"s/{B}": "s/1"}
    report(store, [device(0, B), device(1, A)])
    assert labels(store) == {"s/0": (B, 0, "the fan rattles"), "s/1": (A, 0, "")}
    assert written_down(store) == [("agent of s", "device", "s/1", "", "the fan rattles")]


def test_rows_of_before_get_their_uuids_with_the_first_report(database: str) -> None:
    make_previous(database)
    store = Store(database)
    assert labels(store) == {"s/0": ("", 16, "")}
    attachment = report(store, [device(0, A), device(1, B)])
    assert attachment.devices == {0: f"s/{A}", 1: f"s/{B}"}
    assert where(store, "one") == ("s/0", A)
    assert labels(store) == {"s/0": (A, 16, ""), "s/1": (B, 0, "")}
    with store.reader.connect() as db:
        assert db.execute(sa.select(schema.reservation_placements.c.device)).scalar() == f"s/{A}"
    report(store, [device(0, B), device(1, A)])
    assert where(store, "one") == ("s/1", A)
    store.close()


def test_an_agent_that_tells_no_uuids_goes_on_and_one_that_told_them_may_go_back(store: Store) -> None:
    report(store, [device(0), device(1)])
    old = grant(store, "s/1")
    assert (where(store, old), store.leases.get(old).slices[0].device_id) == (("s/1", ""), "s/1")  # type: ignore[union-attr]
    report(store, [device(0, A), device(1, B)])
    assert where(store, old) == ("s/1", B)
    attachment = report(store, [device(0), device(1)])
    assert attachment.gone == ()
    assert (attachment.device("", 1), where(store, old)) == (f"s/{B}", ("s/1", B))
    assert labels(store) == {"s/0": (A, 0, ""), "s/1": (B, 16, "")}


def test_another_model_under_the_same_number_is_another_device(store: Store) -> None:
    report(store, [device(0)])
    lease = grant(store, "s/0")
    attachment = report(store, [device(0, A, "Tesla T4")])
    assert [gone.label for gone in attachment.gone] == ["s/0"]
    assert store.leases.get(lease).slices[0].device_name == "Tesla V100"  # type: ignore[union-attr]


def test_two_servers_of_one_machine_do_not_offer_one_device_twice(store: Store) -> None:
    report(store, [device(0, A)])
    lease = grant(store, "s/0")
    other = replace(WHO, place="elsewhere", instance="other")
    both = [device(0, A, server="t"), device(1, B, server="t")]
    report(store, both, "t", other)
    twice = "it is offered by GPU server s of the same machine"
    assert {label: trouble for label, (_, _, trouble) in labels(store).items()} == {
        "s/0": "",
        "t/0": twice,
        "t/1": "",
    }
    store.servers.mark_away("s", "pool", 0.0)
    store.servers.note_faults("t", {})
    assert labels(store)["t/0"][2] == twice  # its memory is still promised there
    store.leases.end(lease, "over", 0.0)
    store.leases.worker_gone(lease, f"s/{A}", "over", 0.0)
    store.servers.note_faults("t", {})
    assert labels(store)["t/0"][2] == ""
    # What a server of another machine says of a device counts for nothing here.
    report(store, [device(0, B, server="u")], "u", replace(other, machine="far", place="far"))
    assert (labels(store)["u/0"][2], labels(store)["t/1"][2]) == ("", "")


@pytest.mark.parametrize(
    ("first", "second", "free"),
    [
        ("rack: job 1", "rack: job 2", True),  # one supply made both
        ("rack: job 1", "other: job 2", False),
        ("gpu1", "gpu2", False),
        ("gpu1", "", True),  # an account that administers the pool
        ("", "gpu2", False),
    ],
)
def test_a_server_has_the_devices_of_another_one_that_is_away_where_they_are_akin(
    store: Store, first: str, second: str, free: bool
) -> None:
    def credential(name: str) -> str:
        if not name:
            return "account 0"
        return f"token {create_token(store, name, '', 'agent', 60, 'root', 0.0)[0].id}"

    report(store, [device(0, A)], "s", replace(WHO, credential=credential(first)))
    store.servers.mark_away("s", "pool", 0.0)
    other = replace(WHO, credential=credential(second), place="elsewhere", instance="other")
    report(store, [device(0, A, server="t")], "t", other)
    away = (
        "it is offered by GPU server s of the same machine, which is away; where that one is gone for good, "
        "say “gpukernel server forget s”"
    )
    assert labels(store)["t/0"][2] == ("" if free else away)
    store.servers.forget("s", "root", 0.0, store.clock.steady())
    store.servers.note_faults("t", {})
    assert labels(store)["t/0"][2] == ""


def test_no_number_means_two_devices_that_may_be_promised(store: Store) -> None:
    report(store, [device(0, A), device(1, B)])
    with pytest.raises(sa.exc.IntegrityError), store.deciding() as (db, _):
        db.execute(schema.devices.update().where(schema.devices.c.uuid == B).values(index=0))
