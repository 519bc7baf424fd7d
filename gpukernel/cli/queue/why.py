"""``gpukernel why``: the decision about a lease or a request and its reason, in sentences."""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass
from pathlib import Path

from gpukernel.cli.tables import ask_pool
from gpukernel.cli.terminal.charset import make_console
from gpukernel.cli.terminal.formats import Format, print_data
from gpukernel.cli.terminal.output import NOT_THERE, USAGE, Problem
from gpukernel.common.model import Lease, Waiting
from gpukernel.common.slice_request import PROMOTED_AFTER, class_rank

__all__ = ["Explanation", "about_lease", "about_request", "why"]


@dataclass(frozen=True)
class Explanation:
    """The decision about one lease or request; its `sentences` give the reason."""

    kind: str
    id: str
    priority: str
    state: str
    sentences: tuple[str, ...]


def _moment(when: float) -> str:
    return f"{datetime.datetime.fromtimestamp(when):%Y-%m-%d %H:%M:%S}"


def about_lease(lease: Lease) -> Explanation:
    """Return what was decided about a lease."""
    where = (
        " + ".join(f"{s.memory_bytes // 2**20} MiB of {s.label}" for s in lease.slices) or "no slice any more"
    )
    course = f" for course {lease.holder.course}" if lease.holder.course else ""
    said = [f"Lease {lease.id} of {lease.holder.person}{course}: {where}."]
    if lease.decided_by != "pool":
        said.append(
            f"{lease.decided_by.capitalize()} placed it at {_moment(lease.created)}; the queue had no say."
        )
    elif lease.within:
        said.append(
            f"It was granted at {_moment(lease.created)} inside of {lease.within}, which has room for it."
        )
    else:
        said.append(f"The queue granted it at {_moment(lease.created)} in the class {lease.priority}.")
    if lease.end_reason:
        ended = f" at {_moment(lease.ended)}" if lease.ended else ""
        said.append(f"It ended{ended}: {lease.end_reason}.")
    elif lease.until:
        said.append(f"It ends at {_moment(lease.until)} at the latest.")
    if lease.notice and not lease.end_reason:
        said.append(lease.notice)
    return Explanation("lease", lease.id, lease.priority, lease.state, tuple(said))


def about_request(request: Waiting, now: float) -> Explanation:
    """Return what was decided about a request that waits, at a time in seconds since the epoch."""
    priority = request.slice.priority
    course = f" for course {request.holder.course}" if request.holder.course else ""
    said = [
        f"Request {request.key} of {request.holder.person}{course} waits since {_moment(request.since)}, at place {request.position}.",
    ]
    promoted = request.since + PROMOTED_AFTER[priority]
    if class_rank(priority, now - request.since):
        said.append(f"Its class is {priority}: until {_moment(promoted)} earlier classes come before it.")
    elif priority != "interactive":
        said.append(f"Its class is {priority}; it has waited so long that it counts as interactive.")
    said.append(
        f"{request.reason.rstrip('.')}."
        if request.reason
        else "No quota holds it back: it waits for room, after those before it."
    )
    if request.estimate_seconds >= 0:
        said.append(
            f"It can start at {_moment(now + request.estimate_seconds)}, where leases last as long as they may."
        )
    else:
        said.append("When it starts is not known.")
    return Explanation("request", request.key, priority, "waiting", tuple(said))


def why(beginning: str, pool: str | None, state: Path | None, form: Format) -> None:
    """Print what was decided about the lease whose id, or the request whose key, begins so."""
    if not beginning:
        raise Problem("Say which lease or request: its beginning as “gpukernel leases” shows it.", USAGE)
    leases, waiting = ask_pool(pool, state, lambda client: client.leases(include_ended=True))
    found = [about_lease(one) for one in leases if one.id.startswith(beginning)]
    found += [about_request(one, time.time()) for one in waiting if one.key.startswith(beginning)]
    if not found:
        raise Problem(f"No lease or request of yours begins with “{beginning[:40]}”.", NOT_THERE)
    if len(found) > 1:
        raise Problem(f"“{beginning[:40]}” is the beginning of {len(found)}; write more of it.", USAGE)
    if form in (Format.TABLE, Format.WIDE):
        text = "\n".join(found[0].sentences)
        make_console().print(text, markup=False, highlight=False, soft_wrap=True)
    else:
        print_data(found, form)
