"""The service ``Teaching``: quotas with their effects, the course's queue, messages and usage, for those who teach it.

An administrator may do all of it for every course; an instructor for the own ones, and nobody learns of leases and requests of
others.  Every change is in the audit table with who made it.
"""

from __future__ import annotations

import json
import math

import grpc
import sqlalchemy as sa

import gpukernel.common.proto.teaching_pb2 as pb
import gpukernel.common.proto.teaching_pb2_grpc as rpc
from gpukernel.common.course_entries import message_text
from gpukernel.common.errors import Refused
from gpukernel.common.i18n import say
from gpukernel.pool.auth.identity import Caller, Identity
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.policy.changes import Effect, change_policy, course_change, effects_of, quota_change
from gpukernel.pool.policy.held import apply_to_held
from gpukernel.pool.rpc.administration import may_share_out
from gpukernel.pool.rpc.callers import Access, or_refuse, or_refuse_reading, refuse, teacher, unary
from gpukernel.pool.scheduling.reordering import move_request
from gpukernel.pool.store.policy import note
from gpukernel.pool.store.store import Store
from gpukernel.pool.store.usage_log import use_by_day

__all__ = ["TeachingService"]

LONGEST_HISTORY = 400 * 86400.0


class TeachingService(rpc.TeachingServicer):
    """The service of instructors; every method authenticates its caller first."""

    def __init__(self, manager: LeaseManager, store: Store, identity: Identity) -> None:
        self._manager = manager
        self._store = store
        self.identity = identity

    def _who(self, caller: Caller, course: str) -> str:
        return caller.signature(course, self._store.policy.current())

    @unary
    async def SetQuota(self, request: pb.QuotaChange, access: Access) -> pb.QuotaEffects:
        """Set bounds within the course; with ``check``, only tell their effects."""
        caller = access.caller
        if not may_share_out(access, self._store.policy.current(), request.subject):
            await refuse(
                access.context,
                grpc.StatusCode.PERMISSION_DENIED,
                say(
                    "Only the pool's administrator may set the quota of %(subject)s; instructors set that of their own students.",
                    subject=request.subject[:80],
                ),
            )

        def work() -> pb.QuotaEffects:
            subject, change = quota_change(request.subject, request.bounds)
            who = self._who(caller, subject.course)
            # Looked at first: afterwards, who waited may have been served.
            lines, before, after = change_policy(self._manager, self._store, who, change, check=True)
            effects = effects_of(self._manager, self._store, before, after, subject)
            if not request.check:
                lines, _, _ = change_policy(self._manager, self._store, who, change)
                if request.held and (
                    n := apply_to_held(self._manager, self._store, who, before, after, subject)
                ):
                    said = "1 slice held now has" if n == 1 else f"{n} slices held now have"
                    effects = [one for one in effects if one.kind != "running"]
                    effects.append(Effect("held", "", "", (), n, f"{said} the new times."))
            return pb.QuotaEffects(
                lines=lines,
                effects=[
                    pb.QuotaEffect(
                        kind=effect.kind,
                        bound=effect.bound,
                        limit=effect.limit,
                        people=effect.people,
                        count=effect.count,
                        sentence=effect.sentence,
                    )
                    for effect in effects
                ],
            )

        return await or_refuse(access.context, work)

    @unary
    async def SetCourse(self, request: pb.CourseChange, access: Access) -> pb.CourseChanged:
        """Change what an instructor may say about the course."""
        caller = await teacher(access, self._store.policy.current(), request.course)

        def work() -> pb.CourseChanged:
            try:
                fields = json.loads(request.fields)
            except (ValueError, RecursionError):
                fields = None
            if not isinstance(fields, dict):
                raise Refused("invalid", "What a course is to be is a JSON object.")
            change = course_change(request.course, fields)
            who = self._who(caller, request.course)
            lines, _, _ = change_policy(self._manager, self._store, who, change, check=request.check)
            return pb.CourseChanged(lines=lines)

        return await or_refuse(access.context, work)

    @unary
    async def SendMessage(self, request: pb.MessageToHolder, access: Access) -> pb.MessageSent:
        """Show a message to those who hold slices for the course."""
        caller, lease = access.caller, self._manager.lease(request.lease_id)
        if lease is None or not access.covers(lease.holder, self._store.policy.current):
            await refuse(
                access.context,
                grpc.StatusCode.NOT_FOUND,
                say("The pool knows no lease %(lease)s of yours.", lease=request.lease_id[:40]),
            )

        def work() -> pb.MessageSent:
            assert lease is not None
            text = message_text(request.text)
            if lease.state not in ("starting", "live"):
                raise Refused("not_live", say("This slice has ended; nobody would see the message."))
            said = f"{caller.name}: {text}" if text else ""
            who = self._who(caller, lease.holder.course)
            self._store.leases.say(lease.id, said)
            with self._store.deciding() as (db, _):
                subject = f"course {lease.holder.course}: {lease.holder.person}"
                note(db, self._manager.now(), who, "message", subject, "", text)
            return pb.MessageSent(notice=said)

        return await or_refuse(access.context, work)

    @unary
    async def MoveRequest(self, request: pb.RequestMove, access: Access) -> pb.RequestMoved:
        """Move a request within the course's queue."""
        caller, waiting = access.caller, {w.key: w for w in self._manager.waiting()}.get(request.key)
        if waiting is None or not access.covers(waiting.holder, self._store.policy.current):
            await refuse(
                access.context, grpc.StatusCode.NOT_FOUND, say("No such request waits in a course of yours.")
            )

        def work() -> pb.RequestMoved:
            assert waiting is not None
            moved = move_request(
                self._store,
                waiting.holder.course,
                request.key,
                request.before,
                self._who(caller, waiting.holder.course),
                self._manager.now(),
            )
            self._manager.policy_changed()
            return pb.RequestMoved(moved=moved)

        return await or_refuse(access.context, work)

    @unary
    async def CourseUse(self, request: pb.CourseUseRequest, access: Access) -> pb.CourseUseReply:
        """Answer with the course's use by day and person."""
        await teacher(access, self._store.policy.current(), request.course)
        end = request.end or self._manager.now()
        begin = request.begin

        def work(db: sa.Connection) -> pb.CourseUseReply:
            if not (math.isfinite(begin) and math.isfinite(end) and 0 < begin < end < 1e11):
                raise Refused("invalid", "A history ends after it begins.")
            if end - begin > LONGEST_HISTORY:
                raise Refused("invalid", f"A history spans at most {LONGEST_HISTORY / 86400:.0f} days.")
            found = use_by_day(db, begin, end, request.course)
            days = [
                pb.DailyUse(
                    day=use.day.isoformat(),
                    person=use.person,
                    device_hours=use.device_hours,
                    memory_hours=use.memory_hours,
                )
                for use in found
            ]
            return pb.CourseUseReply(days=days)

        return await or_refuse_reading(access.context, self._store, work)
