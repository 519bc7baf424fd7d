"""What administrators and instructors ask of a pool; see `gpukernel.pool.client` for connecting and for errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc.aio

import gpukernel.pool.proto.admin_pb2 as pb
import gpukernel.pool.proto.admin_pb2_grpc as rpc
from gpukernel.pool.connection import Connection
from gpukernel.pool.hub_client import HubClient
from gpukernel.pool.reservations_client import ReservationsClient
from gpukernel.pool.teaching_client import TeachingClient

__all__ = ["AdminClient", "AuditEntry", "HeldPart", "QuotaLine", "TokenLine"]


@dataclass(frozen=True)
class QuotaLine:
    """One bound of a subject, and what is used of it, as people read them."""

    subject: str
    bound: str
    value: str
    used: str


@dataclass(frozen=True)
class TokenLine:
    """A token without its secret; times in seconds since the epoch, 0 where there is none."""

    id: str
    name: str
    person: str
    scope: str
    created: float
    expires: float
    revoked: float
    certificate_expires: float


@dataclass(frozen=True)
class AuditEntry:
    """Who changed what, from what to what."""

    time: float
    who: str
    action: str
    subject: str
    before: str
    after: str


@dataclass(frozen=True)
class HeldPart:
    """What one lease held while it had one size: `device_hours` is share × hours, `memory_hours` GiB × hours."""

    lease: str
    person: str
    course: str
    description: str
    begins: float
    hours: float
    device_hours: float
    memory_hours: float


def _plain(kind: Any, message: Any) -> Any:
    return kind(**{name: getattr(message, name) for name in kind.__dataclass_fields__})


class AdminClient(HubClient, TeachingClient, ReservationsClient):
    """As `HubClient`, `TeachingClient` and `ReservationsClient`, with what only some may ask; `PoolError` says so to the others."""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._administration: Any = rpc.AdministrationStub(self._channel)  # type: ignore[no-untyped-call]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)

    async def _ask(self, method: str, request: Any) -> Any:
        return await self._call(method, request, self._administration)

    async def quotas(self) -> list[QuotaLine]:
        """Every bound that the caller may see."""
        reply = await self._ask("ShowQuotas", pb.ShowQuotasRequest())
        return [_plain(QuotaLine, line) for line in reply.lines]

    async def set_quota(self, subject: str, bounds: Mapping[str, str]) -> list[str]:
        """Change bounds of one subject; returns what changed."""
        return list((await self._ask("SetQuota", pb.SetQuotaRequest(subject=subject, bounds=bounds))).lines)

    async def import_courses(self, text: str, *, check: bool = False, once: bool = False) -> list[str]:
        """Make the pool's courses and quotas what the file says; returns what changed, or with `check` what would.

        With `once` nothing changes where this very text was imported last: what instructors changed since stays.
        """
        request = pb.ImportCoursesRequest(yaml=text, check=check, once=once)
        return list((await self._ask("ImportCourses", request)).lines)

    async def export_courses(self) -> str:
        """The file that says what the pool has."""
        return str((await self._ask("ExportCourses", pb.ExportCoursesRequest())).yaml)

    async def create_token(
        self, name: str, person: str = "", scope: str = "person", valid_seconds: float = 0
    ) -> tuple[TokenLine, str]:
        """A new token and its text, which the pool does not keep."""
        token, connection = await self._create(name, person, scope, valid_seconds, with_certificate=False)
        return token, connection.token

    async def create_connection(
        self, name: str, person: str = "", scope: str = "person", valid_seconds: float = 0
    ) -> tuple[TokenLine, Connection]:
        """A new token, and all that its holder needs; without the address where the pool has no TLS."""
        return await self._create(name, person, scope, valid_seconds, with_certificate=True)

    async def _create(
        self, name: str, person: str, scope: str, valid_seconds: float, *, with_certificate: bool
    ) -> tuple[TokenLine, Connection]:
        request = pb.CreateTokenRequest(
            name=name,
            person=person,
            scope=scope,
            valid_seconds=valid_seconds,
            with_certificate=with_certificate,
        )
        reply = await self._ask("CreateToken", request)
        connection = Connection(reply.address, reply.secret, reply.authority, reply.certificate)
        return _plain(TokenLine, reply.token), connection

    async def tokens(self) -> list[TokenLine]:
        """Every token that was made."""
        reply = await self._ask("ListTokens", pb.ListTokensRequest())
        return [_plain(TokenLine, token) for token in reply.tokens]

    async def revoke_token(self, identifier: str) -> TokenLine:
        """Nobody gets in with it from now on."""
        reply = await self._ask("RevokeToken", pb.RevokeTokenRequest(id=identifier))
        token: TokenLine = _plain(TokenLine, reply.token)
        return token

    async def report(
        self, begin: float, end: float = 0, course: str = "", person: str = ""
    ) -> list[HeldPart]:
        """What leases that the caller may see held between two times, in seconds since the epoch; end 0: now."""
        request = pb.ReportRequest(begin=begin, end=end, course=course, person=person)
        try:
            call = self._administration.Report(request, timeout=60, metadata=self._metadata)
            return [_plain(HeldPart, part) async for part in call]
        except grpc.aio.AioRpcError as error:
            raise await self.explain(error) from None

    async def drain(self, server: str, deadline_seconds: float = 0) -> int:
        """No new leases on a GPU server; returns how many it still has.  They end at the deadline, where there is one."""
        request = pb.DrainRequest(server=server, deadline_seconds=deadline_seconds)
        return int((await self._ask("Drain", request)).leases)

    async def undrain(self, server: str) -> None:
        """The server gets leases again."""
        await self._ask("Drain", pb.DrainRequest(server=server, undo=True))

    async def audit(self, most: int = 50) -> list[AuditEntry]:
        """The newest changes, the oldest of them first."""
        reply = await self._ask("ShowAudit", pb.ShowAuditRequest(most=most))
        return [_plain(AuditEntry, entry) for entry in reply.entries]
