"""Reservations over gRPC: administrators make them for any course, instructors for their own within what is left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import grpc
import sqlalchemy as sa

import gpukernel.pool.proto.reservations_pb2 as pb
import gpukernel.pool.proto.reservations_pb2_grpc as rpc
from gpukernel.pool import schema
from gpukernel.pool.broker import Broker
from gpukernel.pool.changing import change_rules
from gpukernel.pool.errors import Refused
from gpukernel.pool.identity import Identity
from gpukernel.pool.pins import Pins
from gpukernel.pool.quota import Bounds, Subject
from gpukernel.pool.reservations import MOST_OF_A_COURSE, Reservation, check_reservation, conflict, windows
from gpukernel.pool.rules import Rules, load_rules
from gpukernel.pool.sentences import say
from gpukernel.pool.service import known_caller, known_teacher, or_refuse
from gpukernel.pool.store import Store

__all__ = ["ReservationsService"]


class ReservationsService(rpc.ReservationsServicer):  # type: ignore[misc]
    """Everything here checks who is asking first."""

    def __init__(self, broker: Broker, store: Store, identity: Identity) -> None:
        self._broker = broker
        self._store = store
        self._identity = identity

    async def ListReservations(self, request: Any, context: Any) -> Any:
        await known_caller(self._identity, context)
        rules = self._store.rules()
        return pb.ListReservationsReply(
            reservations=[
                self._message(one, rules) for one in rules.reservations if request.course in ("", one.course)
            ],
            timezone=rules.timezone,
        )

    async def AddReservation(self, request: Any, context: Any) -> Any:
        asked = request.reservation
        caller = await known_teacher(self._identity, context, self._store.rules(), asked.course)
        who = caller.signature(asked.course, self._store.rules())

        def work() -> Any:
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

            def change(before: Rules) -> Rules:
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
                if not windows(new, self._broker.now(), before.timezone):
                    raise Refused("invalid", say("%(when)s is over.", when=new.when()))
                if not caller.administers:
                    self._allow(new, before)
                return replace(before, reservations=(*before.reservations, new))

            seen: list[Any] = []

            def look(db: sa.Connection) -> None:
                rules, now = load_rules(db), self._broker.now()
                Pins(db, self._store, rules, now).lay(self._store.classes(db))
                made = next(one for one in rules.reservations if one == new)
                seen.append(self._message(made, rules, db))

            change_rules(self._broker, self._store, who, change, check=request.check, look=look)
            if request.check:
                (message,) = seen
                message.id = ""  # nobody will find it by that
                return pb.AddReservationReply(reservation=message)
            rules = self._store.rules()
            made = next((one for one in rules.reservations if one == new), new)
            return pb.AddReservationReply(reservation=self._message(made, rules))

        return await or_refuse(context, work)

    def _allow(self, new: Reservation, rules: Rules) -> None:
        """What an instructor may reserve; an administrator knows why there is more than that."""
        quota = rules.quotas.get(Subject("course", course=new.course), Bounds()).devices
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
        for device in self._store.devices():
            capacity[device.name] = capacity.get(device.name, 0.0) + 1
        now = self._broker.now()
        if why := conflict(new, rules.reservations, capacity, quota, now, rules.timezone):
            raise Refused("quota", why)

    async def RemoveReservation(self, request: Any, context: Any) -> Any:
        known = {one.id: one for one in self._store.rules().reservations}
        found = known.get(request.id)
        if found is None:
            await known_caller(self._identity, context)
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"There is no reservation {request.id[:40]}."
            )
        assert found is not None
        caller = await known_teacher(self._identity, context, self._store.rules(), found.course)
        who = caller.signature(found.course, self._store.rules())

        def work() -> Any:
            def change(before: Rules) -> Rules:
                left = tuple(one for one in before.reservations if one.id != found.id)
                return replace(before, reservations=left)

            message = self._message(found, self._store.rules())
            change_rules(self._broker, self._store, who, change)
            return pb.RemoveReservationReply(reservation=message)

        return await or_refuse(context, work)

    def _message(self, one: Reservation, rules: Rules, db: sa.Connection | None = None) -> Any:
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
        ahead = windows(one, self._broker.now(), rules.timezone)
        if ahead:
            message.next_begins, message.next_ends = ahead[0]
            pins, devices = schema.pins, schema.devices
            worth = (
                sa.select(sa.func.sum(sa.cast(pins.c.bytes, sa.Float) / devices.c.memory_bytes))
                .join(devices, devices.c.id == pins.c.device)
                .where(pins.c.reservation == one.id, devices.c.available, pins.c.until == ahead[0][1])
            )
            if db is not None:
                message.ready = db.execute(worth).scalar_one() or 0.0
            else:
                with self._store.reader.connect() as reader:
                    message.ready = reader.execute(worth).scalar_one() or 0.0
        return message
