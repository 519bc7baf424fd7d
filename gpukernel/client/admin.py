"""The calls of administrators and instructors; `gpukernel.client.pool` describes connecting and errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import grpc.aio

import gpukernel.common.proto.admin_pb2 as pb
import gpukernel.common.proto.admin_pb2_grpc as rpc
from gpukernel.client.hub import HubClient
from gpukernel.client.reservations import ReservationsClient
from gpukernel.client.teaching import TeachingClient
from gpukernel.client.tokens import RevokedToken, TokenLine, TokensClient, token_line
from gpukernel.common import messages
from gpukernel.common.connection import Connection
from gpukernel.common.model import GpuServer, LeaseUse, Rung

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from google.protobuf.message import Message

T = TypeVar("T", bound="DataclassInstance")

__all__ = ["AdminClient", "AnnouncedKind", "AuditEntry", "Delegated", "QuotaLine", "TokenLine"]


@dataclass(frozen=True)
class QuotaLine:
    """One bound of a subject, and what is used of it, as people read them."""

    subject: str
    bound: str
    value: str
    used: str


@dataclass(frozen=True)
class AuditEntry:
    """One change: the person `who` made it, and its subject before and after."""

    time: float
    who: str
    action: str
    subject: str
    before: str
    after: str


@dataclass(frozen=True)
class Delegated:
    """The deciders of a device after it was given away: `next_decider` will decide once its `leases` are over, if it is not empty."""

    device: str
    uuid: str
    decided_by: str
    next_decider: str
    leases: int


@dataclass(frozen=True)
class AnnouncedKind:
    """A model that a supply can bring: `count` devices of so many bytes for one lease."""

    name: str
    memory_bytes: int
    count: int


def _plain(kind: type[T], message: Message) -> T:
    """Return a dataclass whose fields are the message's of the same names."""
    return kind(**{field.name: getattr(message, field.name) for field in fields(kind)})


class AdminClient(HubClient, TeachingClient, ReservationsClient, TokensClient):
    """The calls of `HubClient`, `TeachingClient`, `ReservationsClient` and `TokensClient`, and those of administrators; others get a `PoolError`."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._administration = rpc.AdministrationStub(self._channel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)

    async def quotas(self) -> list[QuotaLine]:
        """Return every bound that the caller may see."""
        reply = await self._call(self._administration.ShowQuotas, pb.ShowQuotasRequest())
        return [_plain(QuotaLine, line) for line in reply.lines]

    async def set_quota(self, subject: str, bounds: Mapping[str, str]) -> list[str]:
        """Change bounds of one subject and return what changed."""
        return list(
            (
                await self._call(
                    self._administration.SetQuota, pb.SetQuotaRequest(subject=subject, bounds=bounds)
                )
            ).lines
        )

    async def import_courses(self, text: str, *, check: bool = False, once: bool = False) -> list[str]:
        """Make the pool's courses and quotas what the file says, and return what changed, or with `check` what would.

        With `once` nothing changes where this very text was imported last: what instructors changed since stays.
        """
        request = pb.ImportCoursesRequest(yaml=text, check=check, once=once)
        return list((await self._call(self._administration.ImportCourses, request)).lines)

    async def export_courses(self) -> str:
        """Return a course file that describes the pool as it is."""
        return str((await self._call(self._administration.ExportCourses, pb.ExportCoursesRequest())).yaml)

    async def create_token(
        self, name: str, person: str = "", scope: str = "person", valid_seconds: float | None = None
    ) -> tuple[TokenLine, str]:
        """Create a token, and return it with its text, which the pool does not keep.

        It is valid for `valid_seconds`, without an end where that is 0, and as long as the pool's setting says where it is None.
        """
        token, connection = await self._create(name, person, scope, valid_seconds, with_certificate=False)
        return token, connection.token

    async def create_connection(
        self, name: str, person: str = "", scope: str = "person", valid_seconds: float | None = None
    ) -> tuple[TokenLine, Connection]:
        """Create a token, and return it with all that its holder needs; without the address where the pool has no TLS."""
        return await self._create(name, person, scope, valid_seconds, with_certificate=True)

    async def _create(
        self, name: str, person: str, scope: str, valid_seconds: float | None, *, with_certificate: bool
    ) -> tuple[TokenLine, Connection]:
        request = pb.CreateTokenRequest(
            name=name,
            person=person,
            scope=scope,
            valid_seconds=valid_seconds or 0,
            without_end=valid_seconds == 0,
            with_certificate=with_certificate,
        )
        reply = await self._call(self._administration.CreateToken, request, repeatable=False)
        connection = Connection("", reply.secret, reply.authority, reply.certificate)
        connection = connection.at(reply.addresses or [reply.address])
        return token_line(reply.token), connection

    async def tokens(self) -> list[TokenLine]:
        """Return every token that was made."""
        reply = await self._call(self._administration.ListTokens, pb.ListTokensRequest())
        return [token_line(token) for token in reply.tokens]

    async def confinement(self) -> dict[str, tuple[Rung, ...]]:
        """Return what confines the workers of each GPU server, from outside in; nothing for one whose agent does not say."""
        reply = await self._call(self._administration.ShowConfinement, pb.ShowConfinementRequest())
        return {each.server: tuple(map(messages.rung_from, each.rungs)) for each in reply.servers}

    async def revoke_token(self, identifier: str, *, cascade: bool = False) -> RevokedToken:
        """Revoke a token, and with `cascade` those that were made with it: nobody gets in with it from now on."""
        request = pb.RevokeTokenRequest(id=identifier, cascade=cascade)
        reply = await self._call(self._administration.RevokeToken, request)
        return RevokedToken(token_line(reply.token), reply.made_with_it)

    async def report(
        self, begin: float, end: float = 0, course: str = "", person: str = ""
    ) -> list[LeaseUse]:
        """Return what leases that the caller may see held between two times, in seconds since the epoch; end 0: now."""
        request = pb.ReportRequest(begin=begin, end=end, course=course, person=person)
        try:
            await self._ways.connect()
            call = self._administration.Report(request, timeout=60, metadata=self._metadata)
            return [_plain(LeaseUse, part) async for part in call]
        except grpc.aio.AioRpcError as error:
            raise await self.explain(error) from None

    async def drain(self, server: str, deadline_seconds: float = 0) -> int:
        """Grant no new leases on a GPU server; return how many it still has, which end at the deadline, where there is one."""
        request = pb.DrainRequest(server=server, deadline_seconds=deadline_seconds)
        return int((await self._call(self._administration.Drain, request)).leases)

    async def undrain(self, server: str) -> None:
        """Grant leases on the server again."""
        await self._call(self._administration.Drain, pb.DrainRequest(server=server, undo=True))

    async def delegate(self, device: str, to: str, *, when_free: bool = False) -> Delegated:
        """Have the pool or an engine decide over a device; with `when_free`, once no lease is left there.

        Parameters
        ----------
        device
            ``gpu1/0``, or the beginning of its UUID.
        to
            One of `gpukernel.common.model.DECIDERS`.
        """
        request = pb.DelegateRequest(device=device, to=to, when_free=when_free)
        reply = await self._call(self._administration.Delegate, request)
        return _plain(Delegated, reply)

    async def gpu_servers(self) -> list[GpuServer]:
        """Return every GPU server, and who speaks for it."""
        reply = await self._call(self._administration.ListGpuServers, pb.ListGpuServersRequest())
        return [_plain(GpuServer, server) for server in reply.servers]

    async def forget_server(self, server: str) -> int:
        """Count a GPU server that does not answer as gone for good; return how many leases held memory there."""
        request = pb.ForgetGpuServerRequest(server=server)
        return int((await self._call(self._administration.ForgetGpuServer, request)).leases)

    async def reset_server(self, server: str) -> None:
        """Let the next agent of this name enrol its credential and its machine."""
        await self._call(self._administration.ResetGpuServer, pb.ResetGpuServerRequest(server=server))

    async def announce(self, supply: str, kinds: Iterable[AnnouncedKind], seconds: float) -> None:
        """Let people wait for devices that a supply brings when somebody does, for so long; no kinds: for none any more."""
        devices = [
            pb.AnnouncedDevices(name=one.name, memory_bytes=one.memory_bytes, count=one.count)
            for one in kinds
        ]
        request = pb.AnnounceDevicesRequest(supply=supply, devices=devices, valid_seconds=seconds)
        await self._call(self._administration.AnnounceDevices, request)

    async def audit(self, most: int = 50) -> list[AuditEntry]:
        """Return the newest changes, the oldest of them first."""
        reply = await self._call(self._administration.ShowAudit, pb.ShowAuditRequest(most=most))
        return [_plain(AuditEntry, entry) for entry in reply.entries]
