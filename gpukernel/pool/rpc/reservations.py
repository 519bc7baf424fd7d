"""The service ``Reservations``: administrators make them for any course, instructors for their own within what is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import grpc
import sqlalchemy as sa

import gpukernel.common.proto.reservations_pb2 as pb
import gpukernel.common.proto.reservations_pb2_grpc as rpc
from gpukernel.common.bounds import Bounds, Subject
from gpukernel.common.errors import Refused
from gpukernel.common.i18n import say
from gpukernel.common.policy import Policy
from gpukernel.common.reservations import MOST_OF_A_COURSE, Reservation, check_reservation, conflict, windows
from gpukernel.pool.auth.identity import Identity
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.policy.changes import change_policy
from gpukernel.pool.rpc.callers import Access, or_refuse, refuse, teacher, unary
from gpukernel.pool.scheduling.reservation_placement import ReservationPlacements
from gpukernel.pool.store import schema
from gpukernel.pool.store.policy import load_policy
from gpukernel.pool.store.store import Store

__all__ = ["ReservationsService"]


class ReservationsService(rpc.ReservationsServicer):
    """The service of reservations; every method authenticates its caller first."""

    def __init__(self, manager: LeaseManager, store: Store, identity: Identity) -> None:
        self._manager = manager
        self._store = store
        self.identity = identity

    @unary
    async def ListReservations(
        self, request: pb.ListReservationsRequest, access: Access
    ) -> pb.ListReservationsReply:
        """Answer with the reservations of all courses: they say why something waits."""
        policy = self._store.policy.current()

        def work(db: sa.Connection) -> pb.ListReservationsReply:
            ready = _ready(db)
            return pb.ListReservationsReply(
                reservations=[
                    self._message(one, policy, ready)
                    for one in policy.reservations
                    if request.course in ("", one.course)
                ],
                timezone=policy.timezone,
            )

        return await self._store.read(work)

    @unary
    async def AddReservation(
        self, request: pb.AddReservationRequest, access: Access
    ) -> pb.AddReservationReply:
        """Add a reservation; with ``check``, only say where it would lie."""
        asked = request.reservation
        caller = await teacher(access, self._store.policy.current(), asked.course)
        who = caller.signature(asked.course, self._store.policy.current())

        def work() -> pb.AddReservationReply:
            new = Reservation(
                asked.course,
                tuple(sorted(asked.days)),
                asked.on,
                asked.begins,
                asked.ends,
                asked.devices,
                asked.model,
                asked.preempt,
            )
            check_reservation(new)

            def change(before: Policy) -> Policy:
                if new.course not in before.courses:
                    raise Refused(
                        "no_such_course", say("There is no course %(course)s.", course=new.course[:60])
                    )
                if new in before.reservations:
                    raise Refused(
                        "invalid",
                        say("Course %(course)s has reserved %(what)s already.", course=new.course, what=new),
                    )
                if sum(one.course == new.course for one in before.reservations) >= MOST_OF_A_COURSE:
                    raise Refused(
                        "invalid",
                        say(
                            "Course %(course)s has %(n)s reservations already.",
                            course=new.course,
                            n=MOST_OF_A_COURSE,
                        ),
                    )
                if not windows(new, self._manager.now(), before.timezone):
                    raise Refused("invalid", say("%(when)s is over.", when=new.when()))
                if not caller.administers:
                    self._allow(new, before)
                return replace(before, reservations=(*before.reservations, new))

            seen: list[pb.Reservation] = []

            def look(db: sa.Connection) -> None:
                policy, now = load_policy(db), self._manager.now()
                ReservationPlacements(db, self._store, policy, now).place(self._store.devices.classes(db))
                made = next(one for one in policy.reservations if one == new)
                seen.append(self._message(made, policy, _ready(db)))

            change_policy(self._manager, self._store, who, change, check=request.check, look=look)
            if request.check:
                (message,) = seen
                message.id = ""  # nobody will find it by that
                return pb.AddReservationReply(reservation=message)
            policy = self._store.policy.current()
            made = next((one for one in policy.reservations if one == new), new)
            return pb.AddReservationReply(reservation=self._message(made, policy, self._ready_now()))

        return await or_refuse(access.context, work)

    def _allow(self, new: Reservation, policy: Policy) -> None:
        """Refuse an instructor what the course has no part left of; an administrator knows why there is more than that."""
        quota = policy.quotas.get(Subject("course", course=new.course), Bounds()).devices
        if quota is None:
            raise Refused(
                "quota",
                say(
                    "Course %(course)s has no quota of devices to reserve from; the pool's administrator sets one, or reserves for it.",
                    course=new.course,
                ),
            )
        if new.preempt:
            raise Refused(
                "quota",
                say("Only the pool's administrator makes reservations that end others' leases."),
            )
        capacity: dict[str, float] = {}
        for device in self._store.devices.all():
            capacity[device.name] = capacity.get(device.name, 0.0) + 1
        now = self._manager.now()
        if why := conflict(new, policy.reservations, capacity, quota, now, policy.timezone):
            raise Refused("quota", why)

    @unary
    async def RemoveReservation(
        self, request: pb.RemoveReservationRequest, access: Access
    ) -> pb.RemoveReservationReply:
        """Remove a reservation."""
        known = {one.id: one for one in self._store.policy.current().reservations}
        found = known.get(request.id)
        if found is None:
            await refuse(
                access.context,
                grpc.StatusCode.INVALID_ARGUMENT,
                f"There is no reservation {request.id[:40]}.",
            )
        assert found is not None
        caller = await teacher(access, self._store.policy.current(), found.course)
        who = caller.signature(found.course, self._store.policy.current())

        def work() -> pb.RemoveReservationReply:
            def change(before: Policy) -> Policy:
                left = tuple(one for one in before.reservations if one.id != found.id)
                return replace(before, reservations=left)

            message = self._message(found, self._store.policy.current(), self._ready_now())
            change_policy(self._manager, self._store, who, change)
            return pb.RemoveReservationReply(reservation=message)

        return await or_refuse(access.context, work)

    def _ready_now(self) -> Mapping[tuple[str, float], float]:
        with self._store.reader.connect() as db:
            return _ready(db)

    def _message(
        self, one: Reservation, policy: Policy, ready: Mapping[tuple[str, float], float]
    ) -> pb.Reservation:
        message = pb.Reservation(
            id=one.id,
            course=one.course,
            days=one.days,
            on=one.on,
            begins=one.begins,
            ends=one.ends,
            devices=one.devices,
            model=one.model,
            preempt=one.preempt,
        )
        ahead = windows(one, self._manager.now(), policy.timezone)
        if ahead:
            message.next_begins, message.next_ends = ahead[0]
            message.ready = ready.get((one.id, ahead[0][1]), 0.0)
        return message


def _ready(db: sa.Connection) -> dict[tuple[str, float], float]:
    """Return how many devices' worth each reservation has found room for, by its id and the end of the window."""
    placements, devices = schema.reservation_placements, schema.devices
    worth = sa.func.sum(sa.cast(placements.c.bytes, sa.Float) / devices.c.memory_bytes)
    query = (
        sa.select(placements.c.reservation, placements.c.until, worth.label("worth"))
        .join(devices, devices.c.id == placements.c.device)
        .where(devices.c.available)
        .group_by(placements.c.reservation, placements.c.until)
    )
    return {(row.reservation, row.until): float(row.worth) for row in db.execute(query)}
