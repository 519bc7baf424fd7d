"""The calls about reservations; a part of `gpukernel.client.admin.AdminClient`."""

from __future__ import annotations

from dataclasses import dataclass

import gpukernel.common.proto.reservations_pb2 as pb
import gpukernel.common.proto.reservations_pb2_grpc as rpc
from gpukernel.client.pool import PoolClient
from gpukernel.common.reservations import Reservation

__all__ = ["KnownReservation", "ReservationsClient"]


@dataclass(frozen=True)
class KnownReservation:
    """A reservation, and the state of its next (or open) window.

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
    """A `PoolClient` with the calls about reservations."""

    @property
    def _reservations(self) -> rpc.ReservationsStub:
        return rpc.ReservationsStub(self._channel)

    async def reservations(self, course: str = "") -> tuple[list[KnownReservation], str]:
        """Return all reservations, or a course's, and the time zone of their hours, empty for the pool's own."""
        reply = await self._call(
            self._reservations.ListReservations, pb.ListReservationsRequest(course=course)
        )
        return [_known(one) for one in reply.reservations], str(reply.timezone)

    async def reserve(self, new: Reservation, *, check: bool = False) -> KnownReservation:
        """Make a reservation, or with `check` only see whether that could be.

        Raises
        ------
        PoolError
            With the reason why it cannot be.
        """
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
        return _known(
            (await self._call(self._reservations.AddReservation, request, repeatable=False)).reservation
        )

    async def unreserve(self, identifier: str) -> KnownReservation:
        """Remove a reservation and return it; leases that it made room for stay."""
        request = pb.RemoveReservationRequest(id=identifier)
        return _known(
            (await self._call(self._reservations.RemoveReservation, request, repeatable=False)).reservation
        )


def _known(message: pb.Reservation) -> KnownReservation:
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
