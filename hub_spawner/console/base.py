"""The base of every page: who is asking, their language, a strict content policy, and errors as one sentence."""

from __future__ import annotations

import json
import logging
import time
import urllib.parse
from http import HTTPStatus
from pathlib import Path
from typing import Any

import jinja2
from jupyterhub.services.auth import HubOAuthenticated, UserNotAllowed
from tornado.web import HTTPError, RequestHandler

from gpukernel.client.audit import plain_duration
from gpukernel.common.errors import LeaseEnded, NotAllowed, PoolError, PoolUnreachable, Refused
from gpukernel.common.i18n import say, sentence_of
from hub_spawner.console.course_service import CourseService
from hub_spawner.i18n import LANGUAGES, Texts, choose_language, later
from hub_spawner.roles import administers, courses_of

__all__ = ["LANGUAGE_COOKIE", "TOO_OLD", "Page", "Visit", "environments", "status_of"]

log = logging.getLogger(__name__)

LANGUAGE_COOKIE = "gpukernel-language"
GROUPS_SECONDS = 60.0
BELIEVED_SECONDS = 20
"""The time for which the Hub is not asked again who somebody is: what it takes from them (a group, a role, the session) counts after this time."""
TOO_OLD = later("This form is too old, or not one of this site's; load the page again and repeat it.")
SIGN_IN = later("Sign in to JupyterHub again.")
_SAID = "gpukernel-said"
_ASKED_AGAIN = "gpukernel-asked-again"
_TEMPLATES = Path(__file__).parent / "templates"


def environments() -> dict[str, jinja2.Environment]:
    """Return the templates' environment for each language; everything that is put into a template is escaped."""
    found = {}
    for language in LANGUAGES:
        env = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_TEMPLATES),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.i18n"],
        )
        texts = Texts(language)
        env.install_gettext_callables(texts.gettext, texts.ngettext, newstyle=True)  # type: ignore[attr-defined]
        env.filters["said"] = texts.of
        env.filters["duration"] = plain_duration
        env.filters["part"] = lambda name: urllib.parse.quote(str(name), safe="")
        found[language] = env
    return found


def status_of(error: PoolError) -> int:
    """Return the HTTP status for an error of the pool."""
    kinds = ((NotAllowed, 403), (LeaseEnded, 404), (Refused, 409), (PoolUnreachable, 503))
    return next((status for kind, status in kinds if isinstance(error, kind)), 502)


class Visit(HubOAuthenticated, RequestHandler):  # type: ignore[misc]
    """A request of somebody whom the Hub knows; pages and the JSON API add how they answer."""

    service: CourseService

    def set_default_headers(self) -> None:
        """Set the content policy and the other headers of every answer."""
        hub = self.hub_auth.hub_host
        ours = f"'self' {hub}".strip()
        policy = {
            "default-src": "'none'",
            "script-src": ours,
            "style-src": ours,
            "img-src": f"{ours} data:",
            "font-src": f"{ours} data:",
            "connect-src": "'self'",
            "form-action": "'self'",
            "frame-ancestors": "'none'",
            "base-uri": "'none'",
        }
        self.set_header("Content-Security-Policy", "; ".join(f"{k} {v}" for k, v in policy.items()))
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "same-origin")
        self.set_header("Cache-Control", "no-store")
        self.set_header("Server", "gpukernel")

    async def prepare(self) -> None:
        """Find out who is asking; for a request that changes something, check that one of our own pages sent it."""
        model = await self.hub_auth.get_user(self, sync=False)
        if model is not None:
            try:
                model = self.check_hub_user(model)
            except UserNotAllowed:
                sentence = say("%(person)s may not use this service.", person=model["name"])
                raise HTTPError(403, "%s", sentence) from None
        # A service may have the name of a person, and must not act as that person.
        if model is not None and model.get("kind", "user") != "user":
            raise HTTPError(403, later("This service is for people."))
        self._hub_auth_user_cache = model
        if model is None:
            self.nobody()
            return
        if self.request.method not in ("GET", "HEAD", "OPTIONS"):
            self.check_xsrf_cookie()
        self.service = CourseService(
            self.settings["pool"],
            self.settings["token_file"],
            model["name"],
            administers(model),
            courses_of(model.get("scopes", ())),
        )
        if "groups" in model:
            await self._tell_groups(model["name"], frozenset(model["groups"]))

    async def _tell_groups(self, name: str, groups: frozenset[str]) -> None:
        """Tell the pool the person's groups of the Hub, from which may follow that they teach a course."""
        told: dict[str, tuple[float, frozenset[str]]] = self.settings["told_groups"]
        now = time.monotonic()
        since, known = told.get(name, (0.0, frozenset()))
        if name not in told or known != groups or now - since > GROUPS_SECONDS:
            await self.service.tell_groups(groups)
            told[name] = now, groups

    def nobody(self) -> None:
        """Answer somebody whom the Hub does not know."""
        raise NotImplementedError

    def check_xsrf_cookie(self) -> None:
        """Check the form's token, with a sentence where it does not fit."""
        try:
            super().check_xsrf_cookie()
        except HTTPError:
            raise HTTPError(403, TOO_OLD) from None

    def path_name(self, name: str) -> str:
        """Return a name in the address, which tornado has decoded, after checking it."""
        if not 0 < len(name) <= 256 or not name.isprintable():
            raise HTTPError(404, later("There is no such page."))
        return name

    def _sentence(self, status: int, error: BaseException | None) -> str:
        if isinstance(error, PoolError):
            return sentence_of(error)
        if isinstance(error, HTTPError) and error.log_message == "%s":  # a sentence with figures
            sentence: str = error.args[0]
            return sentence
        if isinstance(error, HTTPError) and error.log_message and status < 500:
            return str(error.log_message % error.args)
        if status >= 500:
            return later("Something went wrong in the console; its log says what.")
        return HTTPStatus(status).phrase + "."

    def log_exception(self, kind: Any, value: Any, trace: Any) -> None:
        """Log an error; the pool's sentences without a traceback."""
        if isinstance(value, PoolError):
            log.info("%s: %s", self.request.path, value)
        else:
            super().log_exception(kind, value, trace)

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        """Answer with the status that fits the pool's error."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, PoolError):
            status_code = status_of(error)
        super().send_error(status_code, **kwargs)


class Page(Visit):
    """A page for people, or the part of one that htmx asks for."""

    @property
    def language(self) -> str:
        """The visitor's language, by cookie or browser."""
        accepted = self.request.headers.get("Accept-Language", "")
        return choose_language(self.get_cookie(LANGUAGE_COOKIE), accepted)

    @property
    def texts(self) -> Texts:
        """The words of that language."""
        return Texts(self.language)

    @property
    def prefix(self) -> str:
        """The service's address, with a slash at its end."""
        return str(self.settings["prefix"])

    @property
    def in_part(self) -> bool:
        """Return whether htmx asks, for a part of a page."""
        return self.request.headers.get("HX-Request") == "true"

    def nobody(self) -> None:
        """Have the visitor sign in, where a page can do that."""
        if self.request.method not in ("GET", "HEAD"):
            # The Hub's library identifies nobody whose form has no valid token of ours.
            raise HTTPError(403, TOO_OLD)
        if self.in_part:
            raise HTTPError(403, SIGN_IN)
        if self.request.headers.get("Sec-Fetch-Mode", "navigate") != "navigate":
            # What a script or a style sheet asks for would sign in anew, and the forms of the page that is open would count no more.
            raise HTTPError(403, SIGN_IN)
        self.redirect(self.get_login_url())

    def course_path(self, course: str) -> str:
        """Return the address of a course's page."""
        return f"{self.prefix}course/{urllib.parse.quote(course, safe='')}"

    def template(self, name: str, **values: Any) -> str:
        """Return a template with `values` and what every page has."""
        hub = self.hub_auth
        user = self._hub_auth_user_cache if hasattr(self, "_hub_auth_user_cache") else None
        common = {
            "prefix": self.prefix,
            "hub": hub.hub_host + hub.hub_prefix,
            "static": self.prefix + "static/",
            "language": self.language,
            "languages": LANGUAGES,
            "xsrf": "" if user is None else self._xsrf_text(),
            "visitor": user["name"] if user else "",
            "administers": bool(user and administers(user)),
            "here": self.request.path,
            "sign_in": SIGN_IN,
            "course_path": self.course_path,
        }
        template: jinja2.Template = self.settings["templates"][self.language].get_template(name)
        return template.render(common | values)

    def _xsrf_text(self) -> str:
        token = self.xsrf_token
        return token.decode("ascii") if isinstance(token, bytes) else str(token)

    def page(self, name: str, **values: Any) -> None:
        """Answer with a template, and the sentence that the last action has left."""
        said = self.get_secure_cookie(_SAID)
        if said and not self.in_part:
            self.clear_cookie(_SAID, path=self.prefix)
        text = said.decode("utf-8", "replace") if said and not self.in_part else ""
        self.finish(self.template(name, said=text, **values))

    def refuse_form(self, part: str, **values: Any) -> None:
        """Answer a form that cannot be: the same form again, with a sentence at each field that is wrong."""
        self.set_status(422)
        if self.in_part:
            self.set_header("HX-Reswap", "none")  # the form replaces itself, and no dialog opens
            self.page(part, in_place=True, **values)
        else:
            self.page("dialog_page.html", part=part, in_place=False, **values)

    def done(self, sentence: str, back: str) -> None:
        """Answer that something was done.  htmx closes the dialog and refreshes, other browsers return to the page;
        both show the sentence.
        """
        if self.in_part:
            self.set_header("HX-Trigger", json.dumps({"said": {"text": sentence}}))
            self.finish("")
        else:
            self.set_secure_cookie(
                _SAID, sentence.encode(), expires_days=None, path=self.prefix, httponly=True
            )
            self.redirect(back, status=303)

    def _asks_again(self, error: BaseException | None) -> bool:
        """Have the visitor sign in again, unseen, before a page is refused: a sign-in knows no role that was given after it."""
        if not isinstance(error, NotAllowed) or self.request.method != "GET" or self.in_part:
            return False
        if self.get_cookie(_ASKED_AGAIN):
            return False
        self.set_cookie(_ASKED_AGAIN, "1", path=self.prefix, max_age=BELIEVED_SECONDS, httponly=True)
        self.redirect(self.get_login_url())
        return True

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with the sentence of an error, as a page or as the part that htmx shows."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        if self._asks_again(error):
            return
        if self.in_part and isinstance(error, HTTPError) and error.log_message == SIGN_IN:
            # The page loads itself again, where nothing has been written in it.
            self.set_header("HX-Trigger", "signed-out")
            self.set_header("HX-Reswap", "none")
        sentence = self.texts.of(self._sentence(status_code, error))
        template = "error.html"
        if self.in_part:
            in_dialog = self.request.headers.get("HX-Target") == "dialog-body"
            template = "dialog_error.html" if in_dialog else "alert.html"
        self.finish(self.template(template, sentence=sentence, status=status_code, said=""))

    def said_of(self, error: PoolError | HTTPError) -> str:
        """Return the sentence of a refusal in the reader's language."""
        return self.texts.of(self._sentence(400, error))

    def written(self, name: str) -> str:
        """Return a field of the form as it was written, however long, for a form that says itself what is wrong."""
        return str(self.get_body_argument(name, "", strip=False))

    def field(self, name: str, most: int = 1000) -> str:
        """Return a field of the form that was sent; empty where it is missing."""
        text = self.get_body_argument(name, "")
        if len(text) > most:
            raise HTTPError(400, "%s", say("%(field)s: at most %(n)s characters.", field=name, n=most))
        return text
