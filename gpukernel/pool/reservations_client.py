"""What is asked of a pool about reservations; a part of `gpukernel.pool.admin_client.AdminClient`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gpukernel.pool.proto.reservations_pb2 as pb
import gpukernel.pool.proto.reservations_pb2_grpc as rpc
from gpukernel.pool.client import PoolClient
from gpukernel.pool.reservations import Reservation

__all__ = ["KnownReservation", "ReservationsClient"]


@dataclass(frozen=True)
class KnownReservation:
    """A reservation, and how its next (or open) window stands.

    Attributes
    ----------
    next_begins, next_ends
        Seconds since the epoch; 0 where all its windows are over.
    ready
        Devices' worth of the room that is kept for that window; less than it reserves where others hold the rest without an end.
    """

    reservation: Reservation
    next_begins: float
    next_ends: float
    ready: float


class ReservationsClient(PoolClient):
    """As `PoolClient`."""

    async def _of_reservations(self, method: str, request: Any) -> Any:
        stub: Any = rpc.ReservationsStub(self._channel)  # type: ignore[no-untyped-call]
        return await self._call(method, request, stub)

    async def reservations(self, course: str = "") -> tuple[list[KnownReservation], str]:
        """All of them, or a course's; and the time zone that their hours are in, empty for the pool's own."""
        reply = await self._of_reservations("ListReservations", pb.ListReservationsRequest(course=course))
        return [_known(one) for one in reply.reservations], str(reply.timezone)

    async def reserve(self, new: Reservation, *, check: bool = False) -> KnownReservation:
        """Make a reservation, or with `check` only say whether that could be; raises `gpukernel.pool.errors.PoolError`."""
        message = pb.Reservation(
            course=new.course,
            days=new.days,
            on=new.on,
            begins=new.begins,
            ends=new.ends,
            devices=new.devices,
            model=new.model,
            preempt=new.preempt,
        )
        request = pb.AddReservationRequest(reservation=message, check=check)
        return _known((await self._of_reservations("AddReservation", request)).reservation)

    async def unreserve(self, identifier: str) -> KnownReservation:
        """Take a reservation away; leases that it made room for stay."""
        request = pb.RemoveReservationRequest(id=identifier)
        return _known((await self._of_reservations("RemoveReservation", request)).reservation)


def _known(message: Any) -> KnownReservation:
    reservation = Reservation(
        message.course,
        tuple(message.days),
        message.on,
        message.begins,
        message.ends,
        message.devices,
        message.model,
        message.preempt,
        message.id,
    )
    return KnownReservation(reservation, message.next_begins, message.next_ends, message.ready)
