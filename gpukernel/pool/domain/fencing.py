"""The decisions that keep a device's memory with one holder: who may speak for a GPU server, and when its memory is free again.

A worker lives as long as its server's *validity*: the pool answers heartbeat ``n`` of an agent with a time, and the agent's workers
live no longer than that time after the agent *sent* heartbeat ``n``, by their machine's own clock.  The pool writes down, before it answers,
until when it fences the memory (`fence_seconds`), by its own clock.  So no clocks are compared, only lengths of time, and the bound holds
for clocks that run up to `DRIFT` too fast or too slow.

Clocks: the holding side counts a machine's sleep (``CLOCK_BOOTTIME``), the granting side does not (``CLOCK_MONOTONIC``): each
errs towards safety.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from gpukernel.common.errors import Refused

__all__ = [
    "DRIFT",
    "LARGEST_EPOCH",
    "NEVER",
    "NOBODY",
    "QUIET_SECONDS",
    "SILENT_SECONDS",
    "START_SECONDS",
    "STOP_SECONDS",
    "VALID_SECONDS",
    "KnownServer",
    "LateRegistration",
    "Registration",
    "ahead_seconds",
    "binding_refusal",
    "enrolled_with",
    "epoch_of",
    "fence_seconds",
    "may_replace",
    "missing_are_dead",
    "refuse_late",
    "rival_refusal",
]

VALID_SECONDS = 300.0
"""The default time for which workers live without a word from the pool: so long it may be away, or be restarted, and no lease is lost."""

STOP_SECONDS = 10.0
"""The time that a worker takes to end after its validity, at most: it looks every second, and its agent kills it after three."""

DRIFT = 0.1
"""The most by which a clock runs too fast or too slow.  Quartz is a thousand times better; chrony slews by up to 0.083."""

SILENT_SECONDS = 10.0
"""Seconds without a heartbeat after which a server is away, whatever its connection looks like."""

QUIET_SECONDS = 5.0
"""Seconds without a heartbeat after which other servers are preferred for new leases."""

START_SECONDS = 5.0
"""Seconds within which an agent confirms that an order to start a worker has arrived; then the lease is started elsewhere."""

NEVER = 1e18
"""The end of a fence that only the worker's death or an administrator opens: of agents that know nothing of validity."""


PROOF_DIGITS = 16
"""Hexadecimal digits that are kept of the digest of an agent's proof."""

LARGEST_EPOCH = 2**53
"""The highest epoch that an agent may bring to a pool that has not come so far itself: no pool does by counting."""


@dataclass(frozen=True)
class Registration:
    """An agent that wants to attach.

    Attributes
    ----------
    credential
        The credential it came with, as `enrolled_with` has it: ``token ID``, ``account UID`` or ``agent.token PROOF``.
    machine
        The identity of its machine; empty where that is not told.
    place
        The place where its workers live; an agent of the same place knows all of them.
    instance
        The process; empty for agents that know nothing of validity.
    epoch
        The highest epoch that it has seen.
    """

    credential: str = ""
    machine: str = ""
    place: str = ""
    instance: str = ""
    epoch: int = 0


NOBODY = Registration()
"""An agent of a version that says nothing about itself."""


@dataclass(frozen=True)
class KnownServer:
    """A server as the pool has it in its books; `attached` says whether an agent's stream is open, `heard` when it last gave a sign of life."""

    name: str
    credential: str = ""
    machine: str = ""
    place: str = ""
    instance: str = ""
    epoch: int = 0
    heard: float = 0.0
    fenced_until: float = 0.0
    attached: bool = False


def fence_seconds(valid_seconds: float) -> float:
    """Return the time by the pool's clock after which no worker lives that was given `valid_seconds` by its agent's clock."""
    return (valid_seconds + STOP_SECONDS) * (1 + DRIFT) / (1 - DRIFT)


def ahead_seconds(valid_seconds: float) -> float:
    """Return by how much longer than one answer needs it a fence is written, so that most heartbeats change nothing: so much later a lost
    server's memory is free."""
    return valid_seconds / 5


def binding_refusal(known: KnownServer | None, new: Registration, other: str, name: str) -> str:
    """Return why an agent may not speak for server `name`; empty where it may.

    Parameters
    ----------
    known
        The server as it is enrolled; None where it never was.
    other
        The server that the credential is bound to, where it is bound to one; of accounts there may be several.
    """
    if other and other != name:
        return (
            f"This token is bound to GPU server {other} and offers no other one; make one for {name} with "
            f"“gpukernel token create {name} --scope agent”, or bind this one anew with “gpukernel server reset {other}”."
        )
    if known is None or not known.credential:
        return ""
    if known.credential != new.credential:
        if _local(known.credential) and _local(new.credential):
            return ""  # both administer the pool, and would reset it
        if _is_shared(known.credential) and _is_shared(new.credential):
            if " " in known.credential:
                return _refused(name, "from another state directory")
            return _machine_refusal(known, new, name)  # by an agent of before 0.3; it is bound from now on
        return _refused(name, f"with another credential ({known.credential})")
    return _machine_refusal(known, new, name)


def _machine_refusal(known: KnownServer, new: Registration, name: str) -> str:
    if known.machine and new.machine != known.machine and not _local(new.credential):
        return _refused(name, f"on another machine ({known.machine[:8]})")
    return ""


def enrolled_with(credential: str, proof: str) -> str:
    """Return what a server is bound to: its own credential, or one that many servers share together with a digest of its agent's `proof`.

    Agents of before 0.3 have no proof; what shares their credential is one with them, until they bring one.
    """
    if not (proof and _is_shared(credential)):
        return credential
    return f"{credential} {hashlib.sha256(proof.encode()).hexdigest()[:PROOF_DIGITS]}"


def _is_shared(credential: str) -> bool:
    return credential.partition(" ")[0] not in ("", "token", "account")


def _local(credential: str) -> bool:
    return credential.startswith("account ")


def _refused(name: str, how: str) -> str:
    return (
        f"GPU server {name} is enrolled {how}. If this is that server, the pool's administrator admits it with "
        f"“gpukernel server reset {name}”; if not, start it with another --name."
    )


def may_replace(known: KnownServer, new: Registration) -> bool:
    """Return whether a new stream may take the place of the open one at once: its agent is the same process, or succeeds it on its state directory,
    which only one process can hold.
    """
    return bool((new.instance and new.instance == known.instance) or (new.place and new.place == known.place))


def rival_refusal(known: KnownServer | None, new: Registration, now: float) -> str:
    """Return why an agent has to wait: another one speaks for its server and is alive; empty where none is."""
    if known is None or not known.attached or may_replace(known, new):
        return ""
    silent = max(now - known.heard, 0.0)
    if silent >= SILENT_SECONDS:
        return ""
    return (
        f"Another agent speaks for GPU server {known.name} and was heard of {silent:.0f} s ago; "
        "two cannot. Stop one of them, or give this one another --name."
    )


class LateRegistration(Exception):
    """A registration that may be older than what the pool knows; its agent registers again with `epoch`, if it still hears."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"the server's epoch is {epoch}")
        self.epoch = epoch


def refuse_late(known: KnownServer | None, new: Registration) -> None:
    """Raise `LateRegistration` where an agent had not heard of the newest epoch when it sent its registration, and `Refused` where it says one
    that no pool has told.

    It may have waited in a partition while the same agent, or its successor, attached by another connection and started workers, which it
    does not list.  An agent that is alive registers again with the epoch that it is told; one from the past hears nothing.

    What this pool has told is taken, however high: an agent that said the highest epoch which is allowed has made the pool count on from
    there, and whoever speaks for that server later could otherwise never attach.
    """
    most = max(LARGEST_EPOCH, known.epoch if known else 0)
    if new.epoch > most:
        raise Refused(
            "epoch",
            f"An epoch of {new.epoch} comes from no pool; it is at most {most}. Delete agent.json in the agent's state directory.",
        )
    if known is not None and new.instance and new.epoch < known.epoch:
        raise LateRegistration(known.epoch)


def epoch_of(known: KnownServer | None, new: Registration) -> int:
    """Return the epoch of an agent that attaches, which nobody has seen: what it says in the next registration shows that it heard this answer."""
    return max(known.epoch if known else 0, new.epoch) + 1


def missing_are_dead(known: KnownServer | None, new: Registration) -> bool:
    """Return whether a worker is dead that the agent does not list: it is where the agent knows every worker that can live."""
    return known is None or known.place in ("", new.place)
