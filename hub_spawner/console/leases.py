"""What an instructor does to one slice: end it, resize it, write to who holds it.  Each is a dialog, and a page without JavaScript."""

from __future__ import annotations

import math
from dataclasses import asdict
from types import SimpleNamespace

from tornado.web import HTTPError

from gpukernel.pool.admin_client import AdminClient
from gpukernel.pool.model import SliceRequest
from hub_spawner.console.base import Page
from hub_spawner.console.desk import Desk, Held
from hub_spawner.console.texts import later

__all__ = ["LeasePage", "ending_reason", "share_of"]


def share_of(text: str) -> SliceRequest:
    """A size from a form.

    Raises
    ------
    HTTPError
        400, with a sentence.
    """
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise HTTPError(400, later("A size is a number above 0 and up to 1, for example 0.05."))
    return SliceRequest(share=share)


def ending_reason(desk: Desk, reason: str) -> str:
    """What the holder of an ended slice reads."""
    words = " ".join(reason.split())[:150]
    if not words.isprintable():
        raise HTTPError(400, later("Write the reason in printable characters."))
    return f"{desk.name} ended it" + (f": {words}" if words else "")


class LeasePage(Page):
    """GET shows the form of an action, POST does it."""

    async def get(self, name: str, lease_id: str, action: str) -> None:
        course = await self.desk.course(self.path_name(name))
        found = await self.desk.lease(course, lease_id)
        if found is None:
            raise HTTPError(404, later("This slice has ended."))
        lease = SimpleNamespace(**asdict(found), each=found.share / max(len(found.devices), 1))
        if self.in_part:
            self.page("lease.html", course=course, lease=lease, action=action)
        else:
            self.page("dialog_page.html", part="lease.html", course=course, lease=lease, action=action)

    async def post(self, name: str, lease_id: str, action: str) -> None:
        course = await self.desk.course(self.path_name(name))
        lease = await self.desk.lease(course, lease_id)
        if lease is None:
            raise HTTPError(404, later("This slice has ended."))
        async with self.desk.as_teacher(course) as pool:
            sentence = await getattr(self, f"_{action}")(pool, lease)
        self.done(sentence % {"person": lease.person}, self.course_path(course.name))

    async def _end(self, pool: AdminClient, lease: Held) -> str:
        await pool.release(lease.id, ending_reason(self.desk, self.field("reason")))
        return self.texts.gettext("The slice of %(person)s has ended.")

    async def _resize(self, pool: AdminClient, lease: Held) -> str:
        await pool.resize(lease.id, share_of(self.field("share")))
        return self.texts.gettext("The slice of %(person)s has its new size.")

    async def _message(self, pool: AdminClient, lease: Held) -> str:
        if not self.field("text").strip():
            raise HTTPError(400, later("Write a message first."))
        await pool.send_message(lease.id, self.field("text"))
        return self.texts.gettext("The message to %(person)s is under way.")
