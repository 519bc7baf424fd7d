"""Permissions: the table of who may call which RPC, and what each may reach with it.

Guarantees
----------
* What the table does not name is refused: `gpukernel.pool.rpc.callers` looks here before every call, and a pool with an RPC that
  the table does not have does not start.
* Names count for persons only: a token of a service, an agent or an administrator that is called like an instructor instructs nothing.
* A server's token reaches the leases of its course, whatever else its person holds or teaches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from gpukernel.common.i18n import say
from gpukernel.common.model import Holder
from gpukernel.common.policy import Policy
from gpukernel.pool.auth.identity import Caller

__all__ = ["PERMISSIONS", "Permission", "Reach"]


class Reach(StrEnum):
    """The reach of a caller with an RPC."""

    NONE = "–"
    OWN = "own"
    """Everything that the caller holds, waits for or is a member of; with a server's token as far as it belongs to the token's course."""
    COURSE = "course"
    """Everything that belongs to a course that the caller instructs."""
    ALL = "all"


@dataclass(frozen=True)
class Permission:
    """The callers of one RPC, and the reach of each.

    Attributes
    ----------
    person
        Somebody with a token of their own, a JupyterHub's token or an account of the pool's machine.
    server
        A single-user server with the token that the Hub gave it; bound to its course.
    instructor
        What a person or a server reaches besides in courses that the person instructs; a server in its own course only.
    service, agent, administrator
        Tokens of these scopes; the pool's own account and root are administrators.
    engine
        Kubernetes' or Slurm's token: what that engine decides over and has placed, and never another's.
    supply
        The token of ``gpukernel slurm supply``: the tokens of agents that it has made, the GPU servers that enrolled with them, and what
        it announces itself.
    stays_open
        The call lasts, and ends when its credentials count no more.
    """

    person: Reach = Reach.NONE
    server: Reach = Reach.NONE
    instructor: Reach = Reach.NONE
    service: Reach = Reach.NONE
    agent: Reach = Reach.NONE
    administrator: Reach = Reach.ALL
    engine: Reach = Reach.NONE
    supply: Reach = Reach.NONE
    stays_open: bool = False

    def of(self, caller: Caller) -> Reach:
        """Return what the caller reaches without instructing a course."""
        reach: Reach = getattr(self, caller.role)
        return reach

    def admits(self, caller: Caller) -> bool:
        """Return whether the caller may make the call at all."""
        return self.of(caller) is not Reach.NONE or (caller.is_person and self.instructor is not Reach.NONE)

    def covers(self, caller: Caller, holder: Holder, policy: Policy | Callable[[], Policy]) -> bool:
        """Return whether the caller reaches with this call what belongs to `holder`; `policy` may read it where that takes a trip."""
        reach = self.of(caller)
        if reach is Reach.ALL:
            return True
        if not (caller.is_person and caller.is_bound_to(holder.course)):
            return False
        if reach is Reach.OWN and holder.person == caller.name:
            return True
        if self.instructor is not Reach.COURSE:
            return False
        return caller.instructs(holder.course, policy() if callable(policy) else policy)

    def refusal(self, caller: Caller) -> str:
        """Return the sentence for a caller whom the call is not for."""
        if caller.role == "agent":
            return say("%(person)s is for a GPU server's agent, which may not do that.", person=caller.name)
        if caller.engine or caller.role == "supply":
            return say("%(person)s is for an engine, which may not do that.", person=caller.name)
        if self.agent is not Reach.NONE and self.service is not Reach.NONE:
            return say(
                "Tokens of GPU servers, JupyterHubs, engines and administrators can be renewed by themselves; %(person)s asks the pool's administrator.",
                person=caller.name,
            )
        if self.agent is not Reach.NONE:
            return say("Only a GPU server's agent may do that, not %(person)s.", person=caller.name)
        if self.service is not Reach.NONE:
            return say("Only a JupyterHub may do that, not %(person)s.", person=caller.name)
        if self.engine is not Reach.NONE:
            return say("Only an engine may do that, Kubernetes or Slurm, not %(person)s.", person=caller.name)
        if self.instructor is not Reach.NONE:
            return say(
                "Only an instructor or the pool's administrator may do that, not %(person)s.",
                person=caller.name,
            )
        return say("Only the pool's administrator may do that, not %(person)s.", person=caller.name)


_HOLDERS = Permission(person=Reach.OWN, server=Reach.OWN, service=Reach.ALL)
_TEACHERS = Permission(instructor=Reach.COURSE)
_ADMINISTRATORS = Permission()
_HUBS = Permission(service=Reach.ALL)
_ENGINES = Permission(engine=Reach.OWN)
_SUPPLIES = Permission(supply=Reach.OWN)

PERMISSIONS: Mapping[str, Permission] = {
    "Pool/Acquire": replace(_HOLDERS, stays_open=True),
    "Pool/Hold": replace(_HOLDERS, stays_open=True),
    "Pool/Renew": _HOLDERS,
    "Pool/Release": replace(_HOLDERS, instructor=Reach.COURSE),
    "Pool/Interrupt": _HOLDERS,
    "Pool/Resize": replace(_HOLDERS, instructor=Reach.COURSE),
    "Pool/ListDevices": Permission(
        person=Reach.ALL, server=Reach.ALL, service=Reach.ALL, engine=Reach.ALL, supply=Reach.ALL
    ),
    "Pool/ListLeases": replace(_HOLDERS, instructor=Reach.COURSE, supply=Reach.ALL),
    "Agents/Attach": Permission(agent=Reach.ALL, stays_open=True),
    "Hub/ListCourses": replace(_HOLDERS, instructor=Reach.COURSE),
    "Hub/Estimate": _HOLDERS,
    "Hub/SetGroups": _HUBS,
    "Hub/OpenServer": _HUBS,
    "Hub/CloseServer": _HUBS,
    "Hub/ListServers": _HUBS,
    "Reservations/ListReservations": Permission(person=Reach.ALL, server=Reach.ALL, service=Reach.ALL),
    "Reservations/AddReservation": _TEACHERS,
    "Reservations/RemoveReservation": _TEACHERS,
    "Teaching/SetQuota": _TEACHERS,
    "Teaching/SetCourse": _TEACHERS,
    "Teaching/SendMessage": _TEACHERS,
    "Teaching/MoveRequest": _TEACHERS,
    "Teaching/CourseUse": _TEACHERS,
    "Administration/ShowQuotas": replace(_HOLDERS, instructor=Reach.COURSE),
    "Administration/SetQuota": _TEACHERS,
    "Administration/ImportCourses": _ADMINISTRATORS,
    "Administration/ExportCourses": _ADMINISTRATORS,
    "Administration/CreateToken": _SUPPLIES,
    "Administration/ListTokens": _SUPPLIES,
    "Administration/RevokeToken": _SUPPLIES,
    "Administration/Drain": _ADMINISTRATORS,
    "Administration/ShowConfinement": _ADMINISTRATORS,
    "Administration/Report": replace(_HOLDERS, instructor=Reach.COURSE),
    "Administration/ShowAudit": _ADMINISTRATORS,
    "Tokens/ShowToken": Permission(
        Reach.OWN, Reach.OWN, Reach.NONE, Reach.OWN, Reach.OWN, Reach.OWN, Reach.OWN, Reach.OWN
    ),
    "Tokens/RenewToken": Permission(service=Reach.OWN, agent=Reach.OWN, engine=Reach.OWN, supply=Reach.OWN),
    "Engines/AcquirePlaced": _ENGINES,
    "Engines/ReleasePlaced": _ENGINES,
    "Engines/ListPlaced": _ENGINES,
    "Administration/Delegate": _ADMINISTRATORS,
    "Administration/ListGpuServers": Permission(supply=Reach.ALL),
    "Administration/ForgetGpuServer": _SUPPLIES,
    "Administration/ResetGpuServer": _ADMINISTRATORS,
    "Administration/AnnounceDevices": _SUPPLIES,
}
"""The permission of every RPC, by service and name.  An instructor sets the quotas of the course's students, and no others."""
