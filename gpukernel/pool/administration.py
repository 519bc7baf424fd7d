"""Quotas, courses and tokens over gRPC, for administrators and, within their courses, instructors."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import sqlalchemy as sa

import gpukernel.pool.proto.admin_pb2 as pb
import gpukernel.pool.proto.admin_pb2_grpc as rpc
from gpukernel.pool import accounts
from gpukernel.pool.broker import Broker
from gpukernel.pool.changing import change_rules, quota_change
from gpukernel.pool.connection import Connection
from gpukernel.pool.course_entries import BOUNDS
from gpukernel.pool.course_file import read_courses, write_courses
from gpukernel.pool.history import Held, held_between
from gpukernel.pool.identity import Caller, Certify, Identity, Token, create_token, list_tokens, revoke_token
from gpukernel.pool.model import Holder
from gpukernel.pool.quota import MILLION, Account, Bounds, Standing
from gpukernel.pool.rules import Rules, note
from gpukernel.pool.schema import audit
from gpukernel.pool.sentences import say
from gpukernel.pool.service import known_caller, or_refuse, refuse
from gpukernel.pool.store import Store

__all__ = ["AdministrationService", "may_share_out"]

MIB = 2**20
HOUR = 3600.0
MOST_ENTRIES = 1000


class AdministrationService(rpc.AdministrationServicer):  # type: ignore[misc]
    """Everything here checks who is asking first."""

    def __init__(
        self,
        broker: Broker,
        store: Store,
        identity: Identity,
        public: Callable[[], Connection] = lambda: Connection(""),
        certify: Certify | None = None,
    ) -> None:
        self._broker = broker
        self._store = store
        self._identity = identity
        self._public = public  # how others reach a pool with TLS
        self._certify = certify

    async def _caller(self, context: Any, *, administers: bool = True) -> Caller:
        caller = await known_caller(self._identity, context)
        if administers and not caller.administers:
            await refuse(
                context,
                grpc.StatusCode.PERMISSION_DENIED,
                say("Only the pool's administrator may do that, not %(person)s.", person=caller.name),
            )
        return caller

    def _change(self, who: str, change: Callable[[Rules], Rules], *, check: bool = False) -> Any:
        """Rules that are changed at once, for those who wait too."""

        changes, _, _ = change_rules(self._broker, self._store, who, change, check=check)
        return pb.Changes(lines=changes)

    async def ShowQuotas(self, request: Any, context: Any) -> Any:
        caller = await self._caller(context, administers=False)
        rules = self._store.rules()
        with self._store.reader.connect() as db:
            standings = accounts.all_standings(db, rules, self._broker.now())
        return pb.ShowQuotasReply(
            lines=[line for line in _lines(rules, standings) if _sees(caller, rules, line)]
        )

    async def SetQuota(self, request: Any, context: Any) -> Any:
        caller = await self._caller(context, administers=False)

        def work() -> Any:
            subject, change = quota_change(request.subject, request.bounds)
            return self._change(caller.signature(subject.course, self._store.rules()), change)

        if not may_share_out(caller, self._store.rules(), request.subject):
            await self._caller(context)
        return await or_refuse(context, work)

    async def ImportCourses(self, request: Any, context: Any) -> Any:
        caller = await self._caller(context)

        def work() -> Any:
            after = read_courses(request.yaml)
            imported = hashlib.sha256(request.yaml.encode()).hexdigest()
            if request.once and self._last_import() == imported:
                return pb.Changes()
            changes = self._change(caller.name, lambda _: after, check=request.check)
            if not request.check:
                with self._store.deciding() as (db, _):
                    note(db, time.time(), caller.name, "import", imported)
            return changes

        return await or_refuse(context, work)

    def _last_import(self) -> str:
        query = (
            sa.select(audit.c.subject).where(audit.c.action == "import").order_by(audit.c.id.desc()).limit(1)
        )
        with self._store.reader.connect() as db:
            return str(db.execute(query).scalar() or "")

    async def ExportCourses(self, request: Any, context: Any) -> Any:
        await self._caller(context)
        return pb.ExportCoursesReply(yaml=write_courses(self._store.rules()))

    async def CreateToken(self, request: Any, context: Any) -> Any:
        caller = await self._caller(context)

        def work() -> Any:
            token, secret, certificate = create_token(
                self._store,
                request.name,
                request.person,
                request.scope,
                request.valid_seconds,
                caller.name,
                time.time(),
                self._certify if request.with_certificate else None,
            )
            public = self._public()
            return pb.CreateTokenReply(
                token=_token_to(token),
                secret=secret,
                address=public.address,
                authority=public.authority,
                certificate=certificate,
            )

        return await or_refuse(context, work)

    async def ListTokens(self, request: Any, context: Any) -> Any:
        await self._caller(context)
        return pb.ListTokensReply(tokens=[_token_to(token) for token in list_tokens(self._store)])

    async def RevokeToken(self, request: Any, context: Any) -> Any:
        caller = await self._caller(context)

        def work() -> Any:
            token = revoke_token(self._store, request.id, caller.name, time.time())
            return pb.RevokeTokenReply(token=_token_to(token))

        return await or_refuse(context, work)

    async def Report(self, request: Any, context: Any) -> AsyncIterator[Any]:
        caller, rules = await self._caller(context, administers=False), self._store.rules()
        end = request.end or self._broker.now()
        if not (math.isfinite(request.begin) and math.isfinite(end) and request.begin < end):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                "A report ends after it begins; look at --since and --until.",
            )
        with self._store.reader.connect() as db:
            found = list(held_between(db, request.begin, end))
        for part in found:
            if request.course not in ("", part.course) or request.person not in ("", part.person):
                continue
            if caller.may_see(Holder(part.person, course=part.course), rules):
                yield pb.HeldPart(**{name: getattr(part, name) for name in Held.__dataclass_fields__})

    async def Drain(self, request: Any, context: Any) -> Any:
        caller = await self._caller(context)

        def work() -> Any:
            if request.undo:
                self._broker.undrain(request.server, caller.name)
                return pb.DrainReply()
            return pb.DrainReply(
                leases=self._broker.drain(request.server, caller.name, request.deadline_seconds)
            )

        return await or_refuse(context, work)

    async def ShowAudit(self, request: Any, context: Any) -> Any:
        await self._caller(context)
        query = sa.select(audit).order_by(audit.c.id.desc()).limit(min(request.most or 50, MOST_ENTRIES))
        with self._store.reader.connect() as db:
            rows = list(db.execute(query))
        names = ("time", "who", "action", "subject", "before", "after")
        entries = [pb.AuditEntry(**{name: getattr(row, name) for name in names}) for row in reversed(rows)]
        return pb.ShowAuditReply(entries=entries)


def may_share_out(caller: Caller, rules: Rules, subject: str) -> bool:
    """Whether the caller may set the quotas of a subject: an instructor shares out within the course; how much the course has is
    the administrator's to say.
    """
    kind, _, course = subject.partition(":")
    return caller.administers or (kind == "student" and caller.instructs(course, rules))


def _token_to(token: Token) -> Any:
    return pb.Token(**{name: getattr(token, name) for name in Token.__dataclass_fields__})


def _lines(rules: Rules, standings: list[Standing]) -> Iterator[Any]:
    """Every bound, and beside it what is used of it."""
    standing = {s.account: s for s in standings}
    for subject, bounds in sorted(rules.quotas.items(), key=lambda item: str(item[0])):
        if subject.kind in ("student", "instructor") or subject.person == "*":
            yield from _bounds(str(subject), bounds, None)
        else:
            account = Account(subject.kind, subject.course, subject.person)
            yield from _bounds(str(subject), bounds, standing.get(account, Standing(account, bounds)))
    for account, found in sorted(standing.items()):
        if account.kind == "member" and found.leases:
            role = rules.role_in(account.course, account.person)
            yield from _bounds(f"{role or 'member'}:{account.course} {account.person}", found.bounds, found)


def _bounds(subject: str, bounds: Bounds, standing: Standing | None) -> Iterator[Any]:
    used: dict[str, str] = {}
    if standing is not None:
        used = {
            "devices": f"{standing.share / MILLION:.2f}",
            "memory": str(standing.memory // MIB),
            "leases": str(standing.leases),
            "gpu_hours_per_day": f"{standing.spent[0] / HOUR:.1f}",
            "gpu_hours_per_week": f"{standing.spent[1] / HOUR:.1f}",
            "gpu_hours_per_term": f"{standing.spent[2] / HOUR:.1f}",
        }
    for name, ours in BOUNDS.items():
        if (value := getattr(bounds, ours)) is not None:
            yield pb.QuotaLine(subject=subject, bound=name, value=f"{value:g}", used=used.get(name, ""))


def _sees(caller: Caller, rules: Rules, line: Any) -> bool:
    if caller.speaks_for_others or line.subject in ("pool", "person:*"):
        return True
    subject, _, person = line.subject.partition(" ")
    _, _, name = subject.partition(":")
    if subject.startswith("person:"):
        return bool(name == caller.name)
    role = caller.role_in(name, rules)
    return role == "instructor" or (bool(role) and person in ("", caller.name))
