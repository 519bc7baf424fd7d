"""The service ``Administration``: quotas, courses, tokens, drains and reports, for administrators and, within their courses, instructors."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import asdict

import grpc
import sqlalchemy as sa

import gpukernel.common.proto.admin_pb2 as pb
import gpukernel.common.proto.admin_pb2_grpc as rpc
from gpukernel.common import messages
from gpukernel.common.address import MOST_ADDRESSES
from gpukernel.common.bounds import MILLION, Account, Bounds, plain_number
from gpukernel.common.connection import Connection
from gpukernel.common.course_entries import BOUNDS
from gpukernel.common.course_file import read_courses, write_courses
from gpukernel.common.errors import Refused
from gpukernel.common.i18n import say, sentence_of
from gpukernel.common.model import Holder, LeaseUse
from gpukernel.common.policy import Policy
from gpukernel.pool.auth.identity import Identity
from gpukernel.pool.auth.permissions import Reach
from gpukernel.pool.auth.tokens import (
    VALID_SECONDS,
    Certify,
    create_token,
    list_tokens,
    revoke_token,
)
from gpukernel.pool.domain.quota import Standing
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.leases.placed_leases import PlacedLeases
from gpukernel.pool.policy.changes import change_policy, quota_change
from gpukernel.pool.rpc.callers import Access, or_refuse, refuse, stream, unary
from gpukernel.pool.rpc.supplies import (
    announced,
    is_made_by,
    refusal_to_forget,
    refusal_to_make,
    refusal_to_revoke,
    token_name,
)
from gpukernel.pool.rpc.tokens import token_to
from gpukernel.pool.store import quota_usage
from gpukernel.pool.store.policy import note
from gpukernel.pool.store.schema import audit, leases
from gpukernel.pool.store.signs_of_life import pool_addresses
from gpukernel.pool.store.store import Store
from gpukernel.pool.store.usage_log import held_between

__all__ = ["AdministrationService", "may_share_out"]

MIB = 2**20
HOUR = 3600.0
MOST_ENTRIES = 1000

ALIVE_SECONDS = 600.0
"""Seconds for which the address of a pool that is not seen any more stands in new connection files: it may be restarted now."""


class AdministrationService(rpc.AdministrationServicer):
    """The service of administrators and instructors; every method authenticates its caller first."""

    def __init__(
        self,
        manager: LeaseManager,
        store: Store,
        identity: Identity,
        public: Callable[[], Connection] = lambda: Connection(""),
        certify: Certify | None = None,
        valid_seconds: float = VALID_SECONDS,
    ) -> None:
        self._manager = manager
        self._store = store
        self.identity = identity
        self._public = public  # how others reach a pool with TLS
        self._certify = certify
        self._valid_seconds = valid_seconds  # of tokens for which nobody says

    def _change(self, who: str, change: Callable[[Policy], Policy], *, check: bool = False) -> pb.Changes:
        """Change the policy at once, for those who wait too."""
        changes, _, _ = change_policy(self._manager, self._store, who, change, check=check)
        return pb.Changes(lines=changes)

    @unary
    async def ShowQuotas(self, request: pb.ShowQuotasRequest, access: Access) -> pb.ShowQuotasReply:
        """Answer with every quota and its use that the caller may see."""
        policy, now = self._store.policy.current(), self._manager.now()
        waiting = Counter(
            account
            for one in self._manager.waiting()
            for account in quota_usage.accounts_of(one.holder.person, one.holder.course)
        )

        def work(db: sa.Connection) -> pb.ShowQuotasReply:
            standings = quota_usage.all_standings(db, policy, now)
            lines = _lines(policy, standings, waiting)
            return pb.ShowQuotasReply(lines=[line for line in lines if _sees(access, policy, line)])

        return await self._store.read(work)

    @unary
    async def SetQuota(self, request: pb.SetQuotaRequest, access: Access) -> pb.Changes:
        """Set bounds of one subject."""
        caller = access.caller

        def work() -> pb.Changes:
            subject, change = quota_change(request.subject, request.bounds)
            return self._change(caller.signature(subject.course, self._store.policy.current()), change)

        if not may_share_out(access, self._store.policy.current(), request.subject):
            await refuse(
                access.context,
                grpc.StatusCode.PERMISSION_DENIED,
                say("Only the pool's administrator may do that, not %(person)s.", person=caller.name),
            )
        return await or_refuse(access.context, work)

    @unary
    async def ImportCourses(self, request: pb.ImportCoursesRequest, access: Access) -> pb.Changes:
        """Make the courses and quotas those of a file; with ``check``, only say what would change."""
        caller = access.caller

        try:
            after = await asyncio.to_thread(read_courses, request.yaml)
        except Refused as refusal:
            await refuse(access.context, grpc.StatusCode.INVALID_ARGUMENT, sentence_of(refusal))

        def work() -> pb.Changes:
            imported = hashlib.sha256(request.yaml.encode()).hexdigest()
            if request.once and self._last_import() == imported:
                return pb.Changes()
            changes = self._change(caller.name, lambda _: after, check=request.check)
            if not request.check:
                with self._store.deciding() as (db, _):
                    note(db, time.time(), caller.name, "import", imported)
            return changes

        return await or_refuse(access.context, work)

    def _last_import(self) -> str:
        query = (
            sa.select(audit.c.subject).where(audit.c.action == "import").order_by(audit.c.id.desc()).limit(1)
        )
        with self._store.reader.connect() as db:
            return str(db.execute(query).scalar() or "")

    @unary
    async def ExportCourses(self, request: pb.ExportCoursesRequest, access: Access) -> pb.ExportCoursesReply:
        """Answer with a file that `ImportCourses` would read."""
        return pb.ExportCoursesReply(yaml=write_courses(self._store.policy.current()))

    @unary
    async def CreateToken(self, request: pb.CreateTokenRequest, access: Access) -> pb.CreateTokenReply:
        """Create a token, and where clients need one, its certificate."""
        caller = access.caller
        await _or_deny(access, refusal_to_make(caller, request))

        def work() -> pb.CreateTokenReply:
            token, secret, certificate = create_token(
                self._store,
                token_name(caller, request.name),
                request.person,
                request.scope,
                0.0 if request.without_end else request.valid_seconds or self._valid_seconds,
                caller.name,
                time.time(),
                self._certify if request.with_certificate else None,
                caller.token,
            )
            public = self._public()
            return pb.CreateTokenReply(
                token=token_to(token),
                secret=secret,
                address=public.address,
                authority=public.authority,
                certificate=certificate,
                addresses=self._addresses(public.address),
            )

        return await or_refuse(access.context, work)

    def _addresses(self, own: str) -> list[str]:
        """Return where this pool and the others on its database are reached over TLS, this one first."""
        if not own:
            return []
        with self._store.reader.connect() as db:
            known = pool_addresses(db, self._manager.steady() - ALIVE_SECONDS)
        return list(dict.fromkeys([own, *known]))[:MOST_ADDRESSES]

    @unary
    async def ListTokens(self, request: pb.ListTokensRequest, access: Access) -> pb.ListTokensReply:
        """Answer with all tokens that the caller reaches, without their secrets."""
        found = await asyncio.to_thread(list_tokens, self._store)
        seen = [token for token in found if is_made_by(access.caller, token)]
        return pb.ListTokensReply(tokens=[token_to(token) for token in seen])

    @unary
    async def RevokeToken(self, request: pb.RevokeTokenRequest, access: Access) -> pb.RevokeTokenReply:
        """Revoke a token."""
        caller = access.caller
        await _or_deny(access, refusal_to_revoke(self._store, caller, request.id))

        def work() -> pb.RevokeTokenReply:
            token, others = revoke_token(
                self._store, request.id, caller.name, time.time(), cascade=request.cascade
            )
            return pb.RevokeTokenReply(token=token_to(token), made_with_it=others)

        return await or_refuse(access.context, work)

    @stream
    async def Report(self, request: pb.ReportRequest, access: Access) -> AsyncIterator[pb.LeaseUse]:
        """Stream what leases held between two times."""
        policy = self._store.policy.current()
        end = request.end or self._manager.now()
        if not (math.isfinite(request.begin) and math.isfinite(end) and request.begin < end):
            await access.context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                "A report ends after it begins; look at --since and --until.",
            )

        def work(db: sa.Connection) -> list[pb.LeaseUse]:
            return [
                pb.LeaseUse(**{name: getattr(part, name) for name in LeaseUse.__dataclass_fields__})
                for part in held_between(db, request.begin, end, None, *_may_be_seen(access, policy, request))
                if request.course in ("", part.course)
                and request.person in ("", part.person)
                and access.covers(Holder(part.person, course=part.course), policy)
            ]

        for part in await self._store.read(work):
            yield part

    @unary
    async def Drain(self, request: pb.DrainRequest, access: Access) -> pb.DrainReply:
        """Drain a server, or admit it again."""
        caller = access.caller

        def work() -> pb.DrainReply:
            if not request.server:
                raise Refused("invalid", "Name the GPU server, as “gpukernel list-gpus” shows it.")
            if request.undo:
                self._manager.undrain(request.server, caller.name)
                return pb.DrainReply()
            return pb.DrainReply(
                leases=self._manager.drain(request.server, caller.name, request.deadline_seconds)
            )

        return await or_refuse(access.context, work)

    @unary
    async def Delegate(self, request: pb.DelegateRequest, access: Access) -> pb.DelegateReply:
        """Have another decide over a device."""

        def work() -> pb.DelegateReply:
            given = PlacedLeases(self._manager).delegate(
                request.device, request.to, access.caller.name, when_free=request.when_free
            )
            return pb.DelegateReply(**asdict(given))

        return await or_refuse(access.context, work)

    @unary
    async def ListGpuServers(
        self, request: pb.ListGpuServersRequest, access: Access
    ) -> pb.ListGpuServersReply:
        """Answer with every GPU server, and who speaks for it."""
        found = self._store.servers.all(self._manager.steady())
        return pb.ListGpuServersReply(servers=[pb.GpuServer(**asdict(one)) for one in found])

    @unary
    async def ForgetGpuServer(
        self, request: pb.ForgetGpuServerRequest, access: Access
    ) -> pb.ForgetGpuServerReply:
        """Count a server that does not answer as gone for good."""
        steady = self._manager.steady()
        await _or_deny(access, refusal_to_forget(self._store, access.caller, request.server, steady))

        def work() -> pb.ForgetGpuServerReply:
            leases = self._manager.forget_server(request.server, access.caller.name)
            return pb.ForgetGpuServerReply(leases=leases)

        return await or_refuse(access.context, work)

    @unary
    async def ResetGpuServer(
        self, request: pb.ResetGpuServerRequest, access: Access
    ) -> pb.ResetGpuServerReply:
        """Let the next agent of this name enrol."""

        def work() -> pb.ResetGpuServerReply:
            self._store.servers.reset(request.server, access.caller.name, self._manager.now())
            return pb.ResetGpuServerReply()

        return await or_refuse(access.context, work)

    @unary
    async def AnnounceDevices(
        self, request: pb.AnnounceDevicesRequest, access: Access
    ) -> pb.AnnounceDevicesReply:
        """Let people wait for what a supply brings."""

        def work() -> pb.AnnounceDevicesReply:
            token, kinds = announced(access.caller, request)
            steady = self._manager.steady()
            with self._store.deciding() as (db, _):
                changed = self._store.devices.announce(
                    db, token, request.supply, kinds, steady + request.valid_seconds, steady
                )
            if changed:
                self._manager.places_changed()
            return pb.AnnounceDevicesReply()

        return await or_refuse(access.context, work)

    @unary
    async def ShowConfinement(
        self, request: pb.ShowConfinementRequest, access: Access
    ) -> pb.ShowConfinementReply:
        """Answer with what confines the workers of each server."""
        return pb.ShowConfinementReply(
            servers=[
                pb.ServerConfinement(server=server, rungs=map(messages.rung_to, rungs))
                for server, rungs in self._store.servers.confinement().items()
            ]
        )

    @unary
    async def ShowAudit(self, request: pb.ShowAuditRequest, access: Access) -> pb.ShowAuditReply:
        """Answer with the newest entries of the audit table."""
        query = sa.select(audit).order_by(audit.c.id.desc()).limit(min(request.most or 50, MOST_ENTRIES))
        rows = await self._store.read(lambda db: list(db.execute(query)))
        names = ("time", "who", "action", "subject", "before", "after")
        entries = [pb.AuditEntry(**{name: getattr(row, name) for name in names}) for row in reversed(rows)]
        return pb.ShowAuditReply(entries=entries)


def _may_be_seen(
    access: Access, policy: Policy, request: pb.ReportRequest
) -> Iterator[sa.ColumnElement[bool]]:
    """Yield conditions of the leases that a report is about and that its caller may see, or some more."""
    caller = access.caller
    if request.course:
        yield leases.c.course == request.course
    if request.person:
        yield leases.c.person == request.person
    if access.permission.of(caller) is not Reach.ALL:
        taught = [course for course in policy.courses if caller.instructs(course, policy)]
        yield sa.or_(leases.c.person == caller.name, leases.c.course.in_(taught))


async def _or_deny(access: Access, sentence: str) -> None:
    """End the call with a sentence, where there is one."""
    if sentence:
        await refuse(access.context, grpc.StatusCode.PERMISSION_DENIED, sentence)


def may_share_out(access: Access, policy: Policy, subject: str) -> bool:
    """Return whether the caller may set the quotas of a subject: an instructor shares out within the course; how much the course has is
    the administrator's to say.
    """
    kind, _, course = subject.partition(":")
    return access.caller.administers or (
        kind == "student" and access.covers(Holder("", course=course), policy)
    )


def _lines(
    policy: Policy, standings: list[Standing], waiting: Mapping[Account, int]
) -> Iterator[pb.QuotaLine]:
    """Return every bound, with what is used of it."""
    standing = {s.account: s for s in standings}
    for subject, bounds in sorted(policy.quotas.items(), key=lambda item: str(item[0])):
        if subject.kind in ("student", "instructor") or subject.person == "*":
            yield from _bounds(str(subject), bounds, None, 0)
        else:
            account = Account(subject.kind, subject.course, subject.person)
            own = standing.get(account, Standing(account, bounds))
            yield from _bounds(str(subject), bounds, own, waiting.get(account, 0))
    for account, found in sorted(standing.items()):
        if account.kind == "member" and found.leases:
            role = policy.role_in(account.course, account.person)
            whose = f"{role or 'member'}:{account.course} {account.person}"
            yield from _bounds(whose, found.bounds, found, waiting.get(account, 0))


def _bounds(subject: str, bounds: Bounds, standing: Standing | None, waiting: int) -> Iterator[pb.QuotaLine]:
    used: dict[str, str] = {}
    if standing is not None:
        used = {
            "devices": f"{standing.share / MILLION:.2f}",
            "memory": str(standing.memory // MIB),
            "leases": str(standing.leases),
            "waiting": str(waiting),
            "gpu_hours_per_day": f"{standing.spent[0] / HOUR:.1f}",
            "gpu_hours_per_week": f"{standing.spent[1] / HOUR:.1f}",
            "gpu_hours_per_term": f"{standing.spent[2] / HOUR:.1f}",
        }
    for name, ours in BOUNDS.items():
        if (value := getattr(bounds, ours)) is not None:
            yield pb.QuotaLine(
                subject=subject, bound=name, value=plain_number(value), used=used.get(name, "")
            )


def _sees(access: Access, policy: Policy, line: pb.QuotaLine) -> bool:
    caller = access.caller
    if not caller.is_person or line.subject in ("pool", "person:*"):
        return True
    subject, _, person = line.subject.partition(" ")
    _, _, name = subject.partition(":")
    if subject.startswith("person:"):
        return name == caller.name
    role = caller.role_in(name, policy)
    return role == "instructor" or (bool(role) and person in ("", caller.name))
