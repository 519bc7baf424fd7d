"""The actions of an instructor on one slice: end it, resize it, write to its holder.  Each is a dialog, and a page
without JavaScript.  What is wrong with its one field is said there, and what was written stays.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

from tornado.web import HTTPError

from gpukernel.client.admin import AdminClient
from gpukernel.common.course_entries import message_text
from gpukernel.common.errors import Refused
from gpukernel.common.i18n import say
from gpukernel.common.model import SliceRequest
from hub_spawner.console.base import Page
from hub_spawner.console.course_service import CourseInfo, CourseLease, CourseService
from hub_spawner.i18n import later

__all__ = ["LeasePage", "ending_reason", "share_of"]

FIELDS = {"end": "reason", "resize": "share", "message": "text"}
"""The field of each action's form."""
LONGEST_REASON = 150


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
    """Return the sentence that the holder of an ended slice reads.

    Raises
    ------
    HTTPError
        400, with a sentence.
    """
    words = " ".join(reason.split())
    if len(words) > LONGEST_REASON:
        sentence = say(
            "A reason has at most %(most)s characters; this one has %(n)s.", most=LONGEST_REASON, n=len(words)
        )
        raise HTTPError(400, "%s", sentence)
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
        values = self._values(course, found, action)
        if self.in_part:
            self.page("lease.html", in_place=False, **values)
        else:
            self.page("dialog_page.html", part="lease.html", in_place=False, **values)

    @staticmethod
    def _values(
        course: CourseInfo, found: CourseLease, action: str, given: str | None = None, wrong: str = ""
    ) -> dict[str, Any]:
        """Return the values of ``lease.html``: what was `given`, and a sentence where it is `wrong`."""
        each = found.share / max(len(found.devices), 1)
        if given is None:
            # Without the part of a MiB that was rounded off when it was granted: 0.3, not 0.299988.
            given = f"{round(each, 4):g}" if action == "resize" else ""
        lease = SimpleNamespace(**asdict(found), each=each)
        return {"course": course, "lease": lease, "action": action, "given": given, "wrong_text": wrong}

    async def post(self, name: str, lease_id: str, action: str) -> None:
        """Carry out the action."""
        course = await self.service.course(self.path_name(name))
        lease = await self.service.lease(course, lease_id)
        if lease is None:
            raise HTTPError(404, later("This slice has ended."))
        given = self.written(FIELDS[action])
        try:
            async with self.service.as_teacher(course) as pool:
                sentence = await getattr(self, f"_{action}")(pool, lease, given)
        except (HTTPError, Refused) as error:
            self.refuse_form("lease.html", **self._values(course, lease, action, given, self.said_of(error)))
            return
        self.done(sentence % {"person": lease.person}, self.course_path(course.name))

    async def _end(self, pool: AdminClient, lease: CourseLease, reason: str) -> str:
        await pool.release(lease.id, ending_reason(self.service, reason))
        return self.texts.gettext("The slice of %(person)s has ended.")

    async def _resize(self, pool: AdminClient, lease: CourseLease, share: str) -> str:
        await pool.resize(lease.id, share_of(share))
        return self.texts.gettext("The slice of %(person)s has its new size.")

    async def _message(self, pool: AdminClient, lease: CourseLease, text: str) -> str:
        if not text.strip():
            raise HTTPError(400, later("Write a message first."))
        # Checked here, too: a call with a text beyond all measure does not reach the pool's own sentence.
        await pool.send_message(lease.id, message_text(text))
        return self.texts.gettext("The message to %(person)s is under way.")
