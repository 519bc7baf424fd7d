"""Reordering: an instructor changes the order within a course.

The course's tickets stay the same numbers; who has which of them changes.  So the course as a whole stands in the queue where it stood, and
no ticket of another course changes: the next slice goes to the course that holds the least for its weight, as always
(`gpukernel.pool.domain.fairness`), and within it to whom the instructor put first.
"""

from __future__ import annotations

import sqlalchemy as sa

from gpukernel.common.errors import Refused
from gpukernel.common.i18n import say
from gpukernel.pool.store.policy import note
from gpukernel.pool.store.schema import ledger, requests
from gpukernel.pool.store.store import Store

__all__ = ["move_request"]


def move_request(store: Store, course: str, key: str, before: str, who: str, now: float) -> bool:
    """Move `key` before `before`, or before all of the course where that is empty; return False where it stood there.

    Raises
    ------
    Refused
        ``not_waiting`` where one of them no longer waits for this course.
    """
    with store.deciding() as (db, _):
        query = sa.select(requests.c.key, requests.c.ticket, requests.c.person)
        rows = list(db.execute(query.where(requests.c.course == course).order_by(requests.c.ticket)))
        keys = [row.key for row in rows]
        if key not in keys or (before and before not in keys):
            raise Refused("not_waiting", say("This request no longer waits; look at the queue again."))
        people = {row.key: row.person for row in rows}
        after = [one for one in keys if one != key]
        after.insert(after.index(before) if before in after else 0, key)
        if before == key or after == keys:
            return False
        changed = [(one, row.ticket) for one, row in zip(after, rows, strict=True) if one != row.key]
        # Tickets are unique at every moment: they go through numbers that nobody else has.
        for one, ticket in changed:
            db.execute(requests.update().where(requests.c.key == one).values(ticket=-ticket))
        for one, ticket in changed:
            db.execute(requests.update().where(requests.c.key == one).values(ticket=ticket))
        # Every pool reads its queue again.
        db.execute(ledger.update().values(queue_version=ledger.c.queue_version + 1))
        place = f"place {after.index(key) + 1} of {len(after)} in the course's queue"
        was = f"place {keys.index(key) + 1} of {len(keys)}"
        note(db, now, who, "queue", f"course {course}: {people[key]}", was, place)
    return True
