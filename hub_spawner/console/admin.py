"""The administrator's page: every course, the GPU servers and the slices on each device, tokens, the audit, and
``courses.yaml``.
"""

from __future__ import annotations

import asyncio
import datetime
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

from tornado.web import HTTPError

from gpukernel.client.admin import AuditEntry
from gpukernel.client.audit import differences, matching_entries, merged, subject_of
from gpukernel.common.connection import write_connection
from gpukernel.common.course_file import course_problems
from gpukernel.common.csv_text import csv_text
from gpukernel.common.errors import NotAllowed, Refused
from gpukernel.common.i18n import say, sentence_of
from gpukernel.common.model import ENGINES
from hub_spawner.console.audit_words import change_words, import_words, subject_words, who_words
from hub_spawner.console.base import Page
from hub_spawner.console.course_service import live
from hub_spawner.console.drawing import cut_devices
from hub_spawner.i18n import Texts, later

__all__ = ["admin_handlers", "seconds_of"]

LARGEST_FILE = 4 * 2**20
MOST_CHANGES = 1000
"""As many as the pool gives out, the newest."""

LONGEST_SECONDS = 3650 * 86400
LIFETIME = later("Write a time up to 3,650 days as 30min, 2h or 120d, not “%(text)s”.")
DEADLINE = later("Write a time from 1 s up to 3,650 days as 30min, 2h or 1d, not “%(text)s”.")
SCOPES = ("person", "service", "agent", "admin", *ENGINES)


def seconds_of(text: str, least: float = 0.0) -> float:
    """Return the seconds of a time from a form, as ``90s``, ``30min``, ``2h`` or ``120d``; 0 for an empty one.

    A time that is written is at least `least`: 0 or 1 s.

    Raises
    ------
    HTTPError
        400, with a sentence.
    """
    written = " ".join(text.split())
    text = text.strip()
    if not text:
        return 0.0
    units = {"s": 1, "min": 60, "h": 3600, "d": 86400}
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz").strip()
    unit = text[len(text.rstrip("abcdefghijklmnopqrstuvwxyz")) :] or "s"
    known = number.isdecimal() and len(number) <= 9 and unit in units
    seconds = float(number) * units[unit] if known else -1.0
    if not least <= seconds <= LONGEST_SECONDS:
        shown = written if len(written) <= 20 else written[:20] + "…"
        raise HTTPError(400, "%s", say(DEADLINE if least else LIFETIME, text=shown))
    return seconds


class AdminPage(Page):
    """A page for the Hub's administrators alone."""

    async def prepare(self) -> None:
        """Refuse everybody but the Hub's administrators."""
        await super().prepare()
        if not self._finished and not self.service.administers:
            raise HTTPError(403, later("Only an administrator of this JupyterHub may open that page."))

    @property
    def back(self) -> str:
        """The address to return to after something was done."""
        return f"{self.prefix}admin"


async def _or_nothing(what: Any) -> Any:
    """Return what the pool says; None where this service's token may not ask."""
    try:
        return await what
    except NotAllowed:
        return None


def _said(shown: SimpleNamespace) -> str:
    return " ".join((shown.subject, *shown.changes))


class AuditPage(AdminPage):
    """A page with the changes that the address asks for: ``who`` made them and what they are ``about``."""

    def wanted(self) -> tuple[str, str]:
        """Return what the changes' authors and texts have to contain."""
        return self.get_query_argument("who", "")[:256], self.get_query_argument("about", "")[:256]

    def wanted_of(self, audit: list[AuditEntry]) -> list[tuple[AuditEntry, SimpleNamespace]]:
        """Return the wanted entries, each with its words in the reader's language; either may contain what is wanted."""
        who, about = self.wanted()
        texts = self.texts
        found = []
        for entry in audit:
            shown = SimpleNamespace(
                time=entry.time,
                who=who_words(texts, entry.who),
                subject=subject_words(texts, entry),
                changes=change_words(texts, entry),
            )
            said = replace(entry, who=f"{entry.who} {shown.who}", after=f"{entry.after} {_said(shown)}")
            if matching_entries([said], who=who, about=about):
                found.append((entry, shown))
        return found

    def changes(self, audit: list[AuditEntry]) -> list[SimpleNamespace]:
        """Return the words of the wanted entries, the newest first."""
        return [shown for _, shown in reversed(self.wanted_of(audit))]


class AuditCsv(AuditPage):
    """The changes as a file."""

    async def get(self) -> None:
        """Send the file."""
        async with self.service.as_administrator() as pool:
            entries = [entry for entry, _ in self.wanted_of(await pool.audit(MOST_CHANGES))]
        header = ("time", "who", "action", "subject", "change", "before", "after")
        rows = (
            (
                datetime.datetime.fromtimestamp(one.time, datetime.UTC).isoformat(timespec="seconds"),
                *(one.who, one.action, subject_of(one)),
                "; ".join(map(str, merged(differences(one)))),
                *(one.before, one.after),
            )
            for one in entries
        )
        self.set_header("Content-Type", "text/csv; charset=utf-8")
        self.set_header("Content-Disposition", 'attachment; filename="changes.csv"')
        self.finish(csv_text(header, rows, "\r\n"))


class OverviewPage(AuditPage):
    """The whole page; its pictures are refreshed every few seconds."""

    async def get(self) -> None:
        """Show courses, devices, tokens and the newest of the audit."""
        async with self.service.as_administrator() as pool:
            (leases, queue), devices, courses, tokens, audit = await asyncio.gather(
                pool.leases(),
                pool.devices(),
                pool.courses(),
                _or_nothing(pool.tokens()),
                _or_nothing(pool.audit(MOST_CHANGES if any(self.wanted()) else 100)),
            )
        names = [known.course.name for known in courses]
        shown = {name: live(name, leases, queue) for name in names}
        self.page(
            "admin.html",
            courses=[known.course for known in courses],
            shown=shown,
            tokens=tokens,
            audit=self.changes(audit) if audit is not None else None,
            file_wrong="",
            wanted=dict(zip(("who", "about"), self.wanted(), strict=True)),
            **token_values(),
            **_devices(devices, leases),
        )


def _devices(devices: Any, leases: Any) -> dict[str, Any]:
    cuts = cut_devices(devices, leases)
    servers: dict[str, list[Any]] = {}
    for cut in cuts:
        servers.setdefault(cut.device.server, []).append(cut)
    colours = {part.course: part.colour for cut in cuts for part in cut.parts}
    return {"servers": servers, "colours": dict(sorted(colours.items()))}


class DevicesPart(AdminPage):
    """The pictures of the devices."""

    async def get(self) -> None:
        """Show them as they are now."""
        async with self.service.as_administrator() as pool:
            (leases, _), devices = await asyncio.gather(pool.leases(), pool.devices())
        self.page("devices.html", **_devices(devices, leases))


class DrainPage(AdminPage):
    """The dialog that drains a GPU server."""

    async def get(self, server: str) -> None:
        """Show the form."""
        server = self.path_name(server)
        async with self.service.as_administrator() as pool:
            known = {device.server for device in await pool.devices()}
        if server not in known:
            raise HTTPError(404, "%s", say("The pool has no GPU server %(server)s.", server=server[:60]))
        part = "drain.html" if self.in_part else "dialog_page.html"
        self.page(part, part="drain.html", in_place=False, server=server, given="", wrong_text="")

    async def post(self, server: str) -> None:
        """Drain the server."""
        server, gettext = self.path_name(server), self.texts.gettext
        given = self.written("deadline")
        try:
            deadline = seconds_of(given, 1)
        except HTTPError as error:
            self.refuse_form("drain.html", server=server, given=given, wrong_text=self.said_of(error))
            return
        async with self.service.as_administrator() as pool:
            count = await pool.drain(server, deadline)
        text = gettext("%(server)s gets no new slices; it holds %(n)s.")
        self.done(text % {"server": server, "n": count}, self.back)


class UndrainPage(AdminPage):
    """The button that ends a drain."""

    async def post(self, server: str) -> None:
        """Use the server again."""
        async with self.service.as_administrator() as pool:
            await pool.undrain(self.path_name(server))
        self.done(self.texts.gettext("%(server)s gets slices again.") % {"server": server}, self.back)


def token_values(
    given: Mapping[str, str] = MappingProxyType({}), errors: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the values of ``token_form.html``: what was `given`, and sentences about it by field."""
    form = SimpleNamespace(given=defaultdict(str, given), errors=defaultdict(str, errors))
    return {"scopes": SCOPES, "token_form": form}


def token_errors(page: Page, given: Mapping[str, str]) -> dict[str, str]:
    """Return, by field, a sentence in the reader's language for what a token cannot have."""
    gettext, errors = page.texts.gettext, dict[str, str]()
    if not given["name"]:
        errors["name"] = gettext(later("Write what the token is for."))
    if given["scope"] == "person" and not given["person"]:
        errors["person"] = gettext(later("Write whose token it is."))
    if given["scope"] != "person" and given["person"]:
        errors["person"] = gettext(later("Only a token of the scope person is somebody's; leave this empty."))
    try:
        seconds_of(given["valid"])
    except HTTPError as error:
        errors["valid"] = page.texts.of(error.args[0])
    return errors


class NewTokenPage(AdminPage):
    """The form for a new token."""

    async def post(self) -> None:
        """Make the token, and show its connection file once."""
        given = {name: self.field(name).strip() for name in ("name", "scope", "person", "valid")}
        if errors := token_errors(self, given):
            self.refuse_form("token_form.html", **token_values(given, errors))
            return
        valid = seconds_of(given["valid"]) if given["valid"] else None  # as the pool's setting says
        async with self.service.as_administrator() as pool:
            token, connection = await pool.create_connection(
                given["name"], given["person"], given["scope"], valid
            )
        part = "token.html" if self.in_part else "dialog_page.html"
        self.page(part, part="token.html", token=token, secret=write_connection(connection, token.name))


class RevokeTokenPage(AdminPage):
    """The button that revokes a token."""

    async def post(self, identifier: str) -> None:
        """Revoke the token."""
        async with self.service.as_administrator() as pool:
            revoked = await pool.revoke_token(identifier)
        values = {"name": revoked.token.name, "n": revoked.made_with_it, "id": revoked.token.id}
        text = self.texts.gettext("The token “%(name)s” opens nothing any more.")
        if revoked.made_with_it:
            ngettext: Callable[[str, str, int], str] = self.texts.ngettext
            text += " " + ngettext(
                "%(n)s token that was made with it still counts; the command “gpukernel token revoke %(id)s --cascade” revokes it.",
                "%(n)s tokens that were made with it still count; the command “gpukernel token revoke %(id)s --cascade” revokes them.",
                revoked.made_with_it,
            )
        self.done(text % values, self.back + "#tokens")


def file_problems(texts: Texts, text: str, refusal: Refused) -> list[str]:
    """Return what the pool says of a file, in the reader's language.

    The pool decides; how its lines are translated is found by reading the file here, too.  A pool of another version may say what
    nobody knows here, which stays as it is.
    """
    here = course_problems(text)
    known = {str(one): one for one in here}
    lines = [sentence_of(refusal)] if not here else str(refusal).splitlines()
    *first, last = lines or [""]
    if all(line in known for line in first) and (last in known or len(here) > len(lines)):
        return [texts.of(one) for one in here]  # the last line may be “… and 7 more”
    return [texts.of(known.get(line, line)) for line in lines]


class CoursesFilePage(AdminPage):
    """The ``courses.yaml`` of the pool: download, preview of an import, and import."""

    async def get(self) -> None:
        """Send the file."""
        async with self.service.as_administrator() as pool:
            text = await pool.export_courses()
        self.set_header("Content-Type", "application/yaml; charset=utf-8")
        self.set_header("Content-Disposition", 'attachment; filename="courses.yaml"')
        self.finish(text)

    async def post(self) -> None:
        """Show what a file would change; with the field ``apply``, import it."""
        try:
            text = self._file()
        except HTTPError as error:
            self.refuse_form("file_form.html", file_wrong=self.said_of(error))
            return
        apply = bool(self.field("apply"))
        problems: list[str] = []
        lines: list[str] = []
        async with self.service.as_administrator() as pool:
            try:
                lines = await pool.import_courses(text, check=not apply)
            except Refused as refusal:
                problems = await asyncio.to_thread(file_problems, self.texts, text, refusal)
        if apply and not problems:
            self.done(self.texts.gettext("The courses are what the file says."), self.back)
            return
        part = "import.html" if self.in_part else "dialog_page.html"
        self.page(
            part,
            part="import.html",
            lines=[import_words(self.texts, one) for one in lines],
            problems=problems,
            text=text,
        )

    def _file(self) -> str:
        files = self.request.files.get("file", [])
        if files and files[0]["body"]:
            try:
                text = str(files[0]["body"].decode("utf-8"))
            except UnicodeDecodeError:
                raise HTTPError(400, later("The file is not UTF-8 text.")) from None
        else:
            text = self.field("yaml", LARGEST_FILE)
        if not text.strip():
            raise HTTPError(400, later("Choose a file, or write one."))
        return text


def admin_handlers(prefix: str) -> list[tuple[str, Any]]:
    """Return the addresses of the administrator's pages."""
    at = f"{prefix}admin"
    return [
        (at, OverviewPage),
        (f"{at}/devices", DevicesPart),
        (rf"{at}/changes\.csv", AuditCsv),
        (f"{at}/server/([^/]+)/drain", DrainPage),
        (f"{at}/server/([^/]+)/undrain", UndrainPage),
        (f"{at}/token", NewTokenPage),
        (f"{at}/token/([^/]+)/revoke", RevokeTokenPage),
        (rf"{at}/courses\.yaml", CoursesFilePage),
    ]
