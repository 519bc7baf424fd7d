"""The JSON API below the pages, for scripts with a JupyterHub token: it serves what `hub_spawner.console.api_calls` lists."""

from __future__ import annotations

import json
from typing import Any

import pydantic
from tornado.web import HTTPError

from hub_spawner.console.api_calls import CALLS, ApiCall, Body
from hub_spawner.console.base import TOO_OLD, Visit
from hub_spawner.console.history import MOST_DAYS
from hub_spawner.console.openapi import description

__all__ = ["api_handlers"]


class JsonHandler(Visit):
    """A handler that answers in JSON; errors are ``{"message": sentence}``."""

    calls: dict[str, ApiCall]

    def initialize(self, calls: dict[str, ApiCall]) -> None:
        """Take the calls of this address, by HTTP method."""
        self.calls = calls

    def nobody(self) -> None:
        """Refuse whoever sends no token that the Hub knows."""
        if "Authorization" not in self.request.headers and self.get_cookie(self.hub_auth.cookie_name):
            raise HTTPError(403, TOO_OLD)  # a browser that asks without a token of our pages
        self.set_header("WWW-Authenticate", "Bearer")
        raise HTTPError(401, "Send a token of this JupyterHub.")

    async def _call(self, *values: str) -> None:
        call = self.calls.get("GET" if self.request.method == "HEAD" else str(self.request.method))
        if call is None:
            raise HTTPError(405, f"{self.request.method} is not possible here.")
        if call.admin and not self.service.administers:
            raise HTTPError(403, f"Only an administrator may do that, not {self.service.name}.")
        arguments: dict[str, Any] = {
            name: self.path_name(value) for name, value in zip(call.parameters, values, strict=True)
        }
        if call.query:
            arguments[call.query] = self._number(call.query)
        if call.body:
            arguments["body"] = self._body(call.body)
        answer = await call.do(self.service, **arguments)
        plain = pydantic.TypeAdapter(call.answer).dump_python(answer, mode="json")
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(plain))

    get = head = post = put = patch = delete = _call  # type: ignore[assignment]

    def _number(self, name: str) -> int:
        given = self.get_query_arguments(name)
        text = given[0] if given else "14"
        if len(given) > 1 or not (text.isascii() and text.isdecimal()) or not 1 <= int(text[:6]) <= MOST_DAYS:
            raise HTTPError(400, f"{name}: a number from 1 to {MOST_DAYS}.")
        return int(text)

    def _body(self, model: type[Body]) -> Body:
        kind = self.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HTTPError(415, "Send JSON, with the content type application/json.")
        try:
            return model.model_validate_json(self.request.body)
        except pydantic.ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(str(part)[:40] for part in first["loc"]) or "the body"
            raise HTTPError(400, f"{where}: {first['msg'][:300]}.") from None

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with the sentence of an error."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        if status_code == 405:
            self.set_header("Allow", ", ".join(sorted(self.calls)))
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps({"message": self._sentence(status_code, error)}))


class UnknownCallHandler(JsonHandler):
    """The answer for every other address below the API."""

    async def prepare(self) -> None:
        """Answer that there is no such call."""
        await super().prepare()
        raise HTTPError(404, "There is no such call.")


class DescriptionHandler(JsonHandler):
    """The OpenAPI description, as `hub_spawner.console.openapi` writes it."""

    async def get(self) -> None:  # type: ignore[override]
        """Send the description."""
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(description(self.settings["prefix"] + "api")))


def api_handlers(prefix: str) -> list[Any]:
    """Return the addresses of the API."""
    by_path: dict[str, dict[str, ApiCall]] = {}
    for call in CALLS:
        by_path.setdefault(call.path, {})[call.method] = call
    handlers: list[Any] = [(rf"{prefix}api/openapi\.json", DescriptionHandler, {"calls": {}})]
    for path, calls in by_path.items():
        pattern = "/".join(
            r"([^/]+)" if p.startswith("{") else p.replace(".", r"\.") for p in path.split("/")
        )
        handlers.append((f"{prefix}api/{pattern}", JsonHandler, {"calls": calls}))
    return [*handlers, (f"{prefix}api/.*", UnknownCallHandler, {"calls": {}})]
