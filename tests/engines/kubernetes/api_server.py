"""A stand-in for Kubernetes' API server, with its semantics of lists, watches, versions, conflicts and server-side apply.

It keeps objects in memory and speaks HTTP.  What is here is as the real one does it: each change gets the next version, a change that
changes nothing gets none; a watch tells all changes after a version, or 410 where they are forgotten; a write with an old version is
refused (409); ``status`` is written by its own address; objects are checked against Kubernetes' schemas (422).  What is not here:
authentication, admission, fields' owners beyond ``status.devices``, garbage collection.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import http.server
import json
import random
import socket
import threading
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.engines.kubernetes.api_objects import (
    KINDS,
    Object,
    Status,
    at,
    check,
    check_claim,
    device_key,
    merged,
    now,
    place,
    public,
)

__all__ = ["ApiServer", "Faults"]


@dataclass
class Faults:
    """Troubles, each with its probability for one request; `random` has a seed."""

    random: random.Random = field(default_factory=lambda: random.Random(1))
    error: float = 0.0  # 500 or 503, nothing is done
    lost_answer: float = 0.0  # it is done, and the connection breaks
    conflict: float = 0.0  # 409 for a write, nothing is done
    kill: float = 0.0  # whoever asks is killed, before or after it is done
    killer: Callable[[], None] = lambda: None

    def draw(self, probability: float) -> bool:
        return self.random.random() < probability


class _Store:
    """The objects and their history."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.version = 100
        self.objects: dict[str, dict[tuple[str, str], Object]] = {plural: {} for plural in KINDS}
        self.history: list[tuple[int, str, str, Object]] = []
        self.forgotten = 100
        self.pages: dict[str, tuple[list[Object], int]] = {}

    def note(self, event: str, plural: str, one: Object) -> Object:
        self.version += 1
        one["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, event, plural, copy.deepcopy(one)))
        self.changed.notify_all()
        return one


class ApiServer:
    """The server, as a context manager; `url` is its address.

    Attributes
    ----------
    faults
        What goes wrong; nothing at first.
    requests
        The method and path of everything that was asked.
    unknown
        Fields of devices that it leaves out, as one without a feature gate does.
    tests
        The user agent for which nothing goes wrong.
    """

    tests = "tests"

    def __init__(self) -> None:
        self.store = _Store()
        self.faults = Faults()
        self.requests: list[tuple[str, str]] = []
        self.unknown: set[str] = set()
        self.watches: set[socket.socket] = set()
        api = self

        class Handler(_Handler):
            server_api = api

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: Any, address: Any) -> None:
                pass  # clients that are killed

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> ApiServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self.drop_watches()
        self._server.server_close()

    def drop_watches(self) -> None:
        """Break the connections of all watches."""
        for one in list(self.watches):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Forget the history, as a compaction does: older versions are 410 Gone."""
        with self.store.changed:
            self.store.forgotten = self.store.version
            self.store.history.clear()
            self.store.pages.clear()

    # --- what requests do -----------------------------------------------------------------------------------------

    def write(
        self,
        method: str,
        plural: str,
        namespace: str,
        name: str,
        part: str,
        body: Object,
        kind: str,
        query: Object,
    ) -> Object:
        """Carry out a write; returns the object."""
        for device in body.get("spec", {}).get("devices", []) if plural == "resourceslices" else []:
            for gone in self.unknown & set(device):
                del device[gone]
        with self.store.changed:
            objects = self.store.objects[plural]
            if method == "POST":
                return self._create(plural, namespace, body)
            known = objects.get((namespace, name))
            if known is None:
                raise Status(404, "NotFound", f'{plural} "{name}" not found')
            metadata = body.get("metadata", {})
            if metadata.get("uid", known["metadata"]["uid"]) != known["metadata"]["uid"]:
                raise Status(409, "Conflict", f"Precondition failed: UID in precondition: {metadata['uid']}")
            version = metadata.get("resourceVersion")
            if version and version != known["metadata"]["resourceVersion"]:
                raise Status(
                    409,
                    "Conflict",
                    "the object has been modified; please apply your changes to the latest version",
                )
            if method == "DELETE":
                return self._delete(plural, namespace, name)
            if method == "PUT":
                changed = self._replaced(known, body, part)
            elif kind == "application/apply-patch+yaml":
                changed = self._applied(known, body, query["fieldManager"], part)
            else:
                changed = merged(known, body)
            return self._store(plural, namespace, name, known, changed)

    def _create(self, plural: str, namespace: str, body: Object) -> Object:
        one = copy.deepcopy(body)
        name = one["metadata"]["name"]
        if (namespace, name) in self.store.objects[plural]:
            raise Status(409, "AlreadyExists", f'{plural} "{name}" already exists')
        if namespace and ("", namespace) not in self.store.objects["namespaces"]:
            raise Status(404, "NotFound", f'namespaces "{namespace}" not found')
        one["metadata"].update(uid=str(uuid.uuid4()), creationTimestamp=now(), generation=1)
        if namespace:
            one["metadata"]["namespace"] = namespace
        one.pop("status", None)
        if plural == "pods":
            one["status"] = {"phase": "Pending"}
        check(one)
        self.store.objects[plural][namespace, name] = one
        return self.store.note("ADDED", plural, one)

    def _delete(self, plural: str, namespace: str, name: str) -> Object:
        known = copy.deepcopy(self.store.objects[plural][namespace, name])
        if known["metadata"].get("finalizers"):
            known["metadata"].setdefault("deletionTimestamp", now())
            self.store.objects[plural][namespace, name] = known
            return self.store.note("MODIFIED", plural, known)
        del self.store.objects[plural][namespace, name]
        return self.store.note("DELETED", plural, known)

    def _replaced(self, known: Object, body: Object, part: str) -> Object:
        if part == "status":
            return {**copy.deepcopy(known), "status": copy.deepcopy(body.get("status", {}))}
        own = copy.deepcopy(body)
        own["metadata"] = {**known["metadata"], **own["metadata"]}
        if "status" in known:
            own["status"] = copy.deepcopy(known["status"])
        return own

    def _applied(self, known: Object, body: Object, manager: str, part: str) -> Object:
        """Apply ``status.devices``, a list that is a map by driver, pool, device and share: entries that this manager had applied
        and does not any more go; those of others stay.
        """
        if part != "status" or set(body) - {"apiVersion", "kind", "metadata", "status"}:
            raise Status(422, "Invalid", "the stand-in applies the status only")
        changed = copy.deepcopy(known)
        owned = {tuple(key) for key in changed["metadata"].get("x-owned", {}).get(manager, [])}
        entries = {device_key(one): one for one in changed.get("status", {}).get("devices", [])}
        for key in owned:
            entries.pop(key, None)
        applied = {device_key(one): one for one in body["status"].get("devices", [])}
        entries.update(copy.deepcopy(applied))
        changed.setdefault("status", {})["devices"] = list(entries.values())
        changed["metadata"].setdefault("x-owned", {})[manager] = [list(key) for key in applied]
        return changed

    def _store(self, plural: str, namespace: str, name: str, known: Object, changed: Object) -> Object:
        for where in ("uid", "creationTimestamp", "resourceVersion"):
            changed["metadata"][where] = known["metadata"][where]
        if plural == "resourceslices":
            for device in changed["spec"].get("devices", []):
                for taint in device.get("taints", []):
                    taint.setdefault("timeAdded", now())
        if plural == "resourceclaims":
            check_claim(changed)
        if changed == known:
            return known  # nothing has changed: no new version, and no event
        check(changed)
        if changed.get("spec") != known.get("spec"):
            changed["metadata"]["generation"] = known["metadata"]["generation"] + 1
        self.store.objects[plural][namespace, name] = changed
        return self.store.note("MODIFIED", plural, changed)

    def listed(self, plural: str, namespace: str | None, query: Object) -> Object:
        """Return a list, or a page of one."""
        with self.store.changed:
            limit = int(query.get("limit", "0"))
            if token := query.get("continue"):
                if token not in self.store.pages:
                    raise Status(410, "Expired", "The provided continue parameter is too old")
                found, version = self.store.pages.pop(token)
            else:
                version = self.store.version
                found = [
                    copy.deepcopy(one)
                    for (where, _), one in sorted(self.store.objects[plural].items())
                    if namespace is None or where == namespace
                ]
                if wanted := query.get("fieldSelector", ""):
                    path, _, value = wanted.partition("=")
                    found = [one for one in found if at(one, path) == value]
            page, rest = (found[:limit], found[limit:]) if limit else (found, [])
            metadata = {"resourceVersion": str(version)}
            if rest:
                metadata["continue"] = token = uuid.uuid4().hex
                self.store.pages[token] = (rest, version)
        group, kind, _ = KINDS[plural]
        version_name = group.removeprefix("/apis/").removeprefix("/api/")
        return {
            "kind": f"{kind}List",
            "apiVersion": version_name,
            "metadata": metadata,
            "items": [public(one) for one in page],
        }

    def events(self, plural: str, namespace: str | None, version: int, until: float) -> Iterator[Object]:
        """Yield the events after a version, for a time; None now and then where there is none."""
        end = datetime.datetime.now().timestamp() + until
        with self.store.changed:
            if version < self.store.forgotten:
                raise Status(410, "Expired", f"too old resource version: {version} ({self.store.forgotten})")
        while datetime.datetime.now().timestamp() < end:
            with self.store.changed:
                if version < self.store.forgotten:
                    yield {
                        "type": "ERROR",
                        "object": Status(410, "Expired", "too old resource version").object,
                    }
                    return
                news = [one for one in self.store.history if one[0] > version]
                if not news:
                    self.store.changed.wait(0.5)
                    continue
            for number, event, kind, one in news:
                version = number
                if kind == plural and (namespace is None or one["metadata"].get("namespace") == namespace):
                    yield {"type": event, "object": public(one)}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_api: ApiServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, code: int, body: Object) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _serve(self) -> None:
        api = self.server_api
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        api.requests.append((self.command, self.path))
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        faults = api.faults if self.headers.get("User-Agent") != api.tests else Faults()
        try:
            if faults.draw(faults.error):
                code = faults.random.choice((500, 503))
                raise Status(code, "InternalError", "the stand-in was told to fail")
            plural, namespace, name, part = place(parts.path)
            if faults.draw(faults.kill):
                faults.killer()
            if self.command == "GET":
                self._read(plural, namespace, name, query)
                return
            if faults.draw(faults.conflict):
                raise Status(409, "Conflict", "the stand-in was told to refuse")
            kind = (self.headers.get("Content-Type") or "").partition(";")[0]
            done = api.write(self.command, plural, namespace or "", name, part, body, kind, query)
            if faults.draw(faults.kill):
                faults.killer()
            if faults.draw(faults.lost_answer):
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self._answer(201 if self.command == "POST" else 200, public(done))
        except Status as status:
            self._answer(status.code, status.object)

    def _read(self, plural: str, namespace: str | None, name: str, query: Object) -> None:
        api = self.server_api
        if name:
            with api.store.changed:
                one = api.store.objects[plural].get((namespace or "", name))
                if one is None:
                    raise Status(404, "NotFound", f'{plural} "{name}" not found')
                found = public(one)
            self._answer(200, found)
        elif str(query.get("watch")).lower() != "true":  # KubeSpawner says “True”
            self._answer(200, api.listed(plural, namespace, query))
        else:
            self._watch(plural, namespace, query)

    def _watch(self, plural: str, namespace: str | None, query: Object) -> None:
        api = self.server_api
        until = float(query.get("timeoutSeconds", "300"))
        events = api.events(plural, namespace, int(query["resourceVersion"]), until)
        first = next(events, None) if int(query["resourceVersion"]) < api.store.forgotten else None
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        api.watches.add(self.connection)
        try:
            for event in [first] if first else events:
                data = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
        finally:
            api.watches.discard(self.connection)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve
