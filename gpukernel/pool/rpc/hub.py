"""The service ``Hub``: what a JupyterHub asks about its users' servers and about what they may choose.

A single-user server has one token, bound to its person, its name and its course.  What it acquires carries all three, whatever the
code in it says, so closing the server ends exactly that.
"""

from __future__ import annotations

import secrets
import time

import sqlalchemy as sa

import gpukernel.common.proto.hub_pb2 as pb
import gpukernel.common.proto.hub_pb2_grpc as rpc
from gpukernel.common.course import Course
from gpukernel.common.errors import Refused
from gpukernel.common.i18n import words_to
from gpukernel.common.logs import one_line
from gpukernel.common.model import Holder, SliceRequest
from gpukernel.pool.auth.identity import Identity
from gpukernel.pool.auth.tokens import OF_SERVERS, VALID_SECONDS, Certify, token_hash, write_token
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.rpc.callers import Access, or_refuse, or_refuse_reading, unary
from gpukernel.pool.scheduling.estimates import chances
from gpukernel.pool.store.policy import note, write_groups
from gpukernel.pool.store.schema import tokens
from gpukernel.pool.store.store import Store

__all__ = ["HubService"]

MOST_GROUPS = 1000
_OPEN = sa.and_(OF_SERVERS, tokens.c.revoked.is_(None))


class HubService(rpc.HubServicer):
    """The service of JupyterHub; every method authenticates its caller first."""

    def __init__(
        self,
        manager: LeaseManager,
        store: Store,
        identity: Identity,
        certify: Certify | None = None,
        valid_seconds: float = VALID_SECONDS,
    ) -> None:
        self._manager = manager
        self._store = store
        self.identity = identity
        self._certify = certify
        self._valid_seconds = valid_seconds  # of servers' tokens

    @unary
    async def ListCourses(self, request: pb.ListCoursesRequest, access: Access) -> pb.ListCoursesReply:
        """Answer with the courses of a person."""
        caller, policy = access.caller, self._manager.policy()
        reply = pb.ListCoursesReply()
        for name, course in policy.courses.items():
            role = caller.role_in(name, policy)
            if (role or not caller.is_person) and access.covers(Holder(caller.name, course=name), policy):
                reply.courses.append(_course(course, role, whole=role != "student"))
        return reply

    @unary
    async def Estimate(self, request: pb.EstimateRequest, access: Access) -> pb.EstimateReply:
        """Answer with what a person would get now for each of some requests."""
        caller = access.caller
        person = request.person if caller.speaks_for_others and request.person else caller.name
        course = caller.course or request.course

        asked = [
            SliceRequest(share=size.share, model=size.model, priority=size.priority or "interactive")
            for size in request.sizes
        ]
        policy, queue, now = self._manager.policy(), self._manager.waiting(), self._manager.now()
        kinds = self._store.devices.classes()

        def work(db: sa.Connection) -> pb.EstimateReply:
            found = chances(db, self._store, kinds, policy, person, course, asked, queue, now)
            return pb.EstimateReply(
                chances=[
                    pb.Chance(
                        state=one.state,
                        memory_bytes=one.memory_bytes,
                        free=one.free,
                        waiting=one.waiting,
                        wait_seconds=one.wait_seconds,
                        sentence=one.sentence,
                        words=words_to(one.sentence),
                    )
                    for one in found
                ]
            )

        return await or_refuse_reading(access.context, self._store, work)

    @unary
    async def SetGroups(self, request: pb.SetGroupsRequest, access: Access) -> pb.SetGroupsReply:
        """Record the Hub's groups of a person."""

        def work() -> pb.SetGroupsReply:
            _check_names(request.person)
            _check_names(*request.groups)
            if len(request.groups) > MOST_GROUPS:
                raise Refused("invalid", f"{request.person} is in more than {MOST_GROUPS} groups.")
            with self._store.deciding() as (db, row):
                policy = self._store.policy.current(db, row.policy_version)
                changed = write_groups(db, policy, request.person, request.groups)
            if changed:
                self._manager.policy_changed()
            return pb.SetGroupsReply()

        return await or_refuse(access.context, work)

    @unary
    async def OpenServer(self, request: pb.OpenServerRequest, access: Access) -> pb.OpenServerReply:
        """Create the token of a single-user server."""
        caller, person, server = access.caller, request.person, request.server

        def work() -> pb.OpenServerReply:
            _check_names(person, server)
            if request.course:
                self._manager.policy().role(request.course, person)
            self._close(person, server, "its server was started again", caller.name)
            identifier = "gpk" + secrets.token_hex(5)
            text, now = f"{identifier}.{secrets.token_urlsafe(32)}", time.time()
            name = f"{person}'s server {server}"[:256]
            expires = now + self._valid_seconds if self._valid_seconds else None
            certificate, until = (
                self._certify(identifier, name, expires or 0, now) if self._certify else ("", None)
            )
            with self._store.deciding() as (db, _):
                values = {
                    "id": identifier,
                    "hash": token_hash(text),
                    "name": name,
                    "person": person,
                    "scope": "person",
                    "created": now,
                    "expires": expires,
                    "course": request.course,
                    "server": server,
                    "certificate_expires": until,
                    "inside": request.inside,
                    "made_with": caller.token,
                }
                write_token(db, values)
            return pb.OpenServerReply(token=text, certificate=certificate)

        return await or_refuse(access.context, work)

    @unary
    async def CloseServer(self, request: pb.CloseServerRequest, access: Access) -> pb.CloseServerReply:
        """Revoke the token of a single-user server, and end what it holds."""
        caller = access.caller

        def work() -> pb.CloseServerReply:
            _check_names(request.person, request.server)
            reason = one_line(request.reason[:256]) or "its server was stopped"
            return pb.CloseServerReply(
                leases=self._close(request.person, request.server, reason, caller.name)
            )

        return await or_refuse(access.context, work)

    def _close(self, person: str, server: str, reason: str, who: str) -> int:
        """Take the server's token first, so that nothing is acquired with it afterwards."""
        now = time.time()
        whose = sa.and_(tokens.c.person == person, tokens.c.server == server)
        with self._store.deciding() as (db, _):
            gone = db.execute(tokens.update().where(_OPEN, whose).values(revoked=now))
            if gone.rowcount:
                note(db, now, who, "server", f"{person} {server}", "open", reason)
        return self._manager.end_server(person, server, reason)

    @unary
    async def ListServers(self, request: pb.ListServersRequest, access: Access) -> pb.ListServersReply:
        """Answer with the single-user servers that have a token."""
        query = sa.select(tokens).where(_OPEN).order_by(tokens.c.created)

        def work(db: sa.Connection) -> pb.ListServersReply:
            return pb.ListServersReply(
                servers=[
                    pb.OpenedServer(
                        person=row.person, server=row.server, course=row.course, since=row.created
                    )
                    for row in db.execute(query)
                ]
            )

        return await self._store.read(work)


def _check_names(*names: str) -> None:
    for name in names:
        if not 1 <= len(name) <= 256 or not name.isprintable():
            raise Refused(
                "invalid", "A person, a server and a group have names of 1 to 256 printable characters."
            )


def _course(course: Course, role: str, *, whole: bool) -> pb.Course:
    profile = course.profile
    message = pb.Course(
        name=course.name,
        title=course.title,
        role=role,
        weight=course.weight,
        term=profile.term,
        offers=[offer.size for offer in profile.offers],
        offer_classes=[offer.priority for offer in profile.offers],
        priority=profile.priority,
        environments=profile.environments,
        start=profile.start,
        notebooks=profile.notebooks,
    )
    if whole:
        message.groups.extend(profile.groups)
        message.instructor_groups.extend(profile.instructor_groups)
        message.members.update(course.members)
    return message
