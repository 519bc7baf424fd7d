"""The actions of an instructor on one slice: end it, resize it, write to its holder.  Each is a dialog, and a page
without JavaScript.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from types import SimpleNamespace

from tornado.web import HTTPError

from gpukernel.client.admin import AdminClient
from gpukernel.common.model import SliceRequest
from hub_spawner.console.base import Page
from hub_spawner.console.course_service import CourseLease, CourseService
from hub_spawner.i18n import later

__all__ = ["LeasePage", "ending_reason", "share_of"]


def share_of(text: str) -> SliceRequest:
    """Return the size that a form asks for.

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


def ending_reason(service: CourseService, reason: str) -> str:
    """Return the sentence that the holder of an ended slice reads."""
    words = " ".join(reason.split())[:150]
    if not words.isprintable():
        raise HTTPError(400, later("Write the reason in printable characters."))
    return f"{service.name} ended it: {words}" if words else f"{service.name} ended it"


class LeasePage(Page):
    """The dialog of one action on a slice."""

    async def get(self, name: str, lease_id: str, action: str) -> None:
        """Show the form."""
        course = await self.service.course(self.path_name(name))
        found = await self.service.lease(course, lease_id)
        if found is None:
            raise HTTPError(404, later("This slice has ended."))
        lease = SimpleNamespace(**asdict(found), each=found.share / max(len(found.devices), 1))
        if self.in_part:
            self.page("lease.html", course=course, lease=lease, action=action)
        else:
            self.page("dialog_page.html", part="lease.html", course=course, lease=lease, action=action)

    async def post(self, name: str, lease_id: str, action: str) -> None:
        """Carry out the action."""
        course = await self.service.course(self.path_name(name))
        lease = await self.service.lease(course, lease_id)
        if lease is None:
            raise HTTPError(404, later("This slice has ended."))
        async with self.service.as_teacher(course) as pool:
            sentence = await getattr(self, f"_{action}")(pool, lease)
        self.done(sentence % {"person": lease.person}, self.course_path(course.name))

    async def _end(self, pool: AdminClient, lease: CourseLease) -> str:
        await pool.release(lease.id, ending_reason(self.service, self.field("reason")))
        return self.texts.gettext("The slice of %(person)s has ended.")

    async def _resize(self, pool: AdminClient, lease: CourseLease) -> str:
        await pool.resize(lease.id, share_of(self.field("share")))
        return self.texts.gettext("The slice of %(person)s has its new size.")

    async def _message(self, pool: AdminClient, lease: CourseLease) -> str:
        if not self.field("text").strip():
            raise HTTPError(400, later("Write a message first."))
        await pool.send_message(lease.id, self.field("text"))
        return self.texts.gettext("The message to %(person)s is under way.")
