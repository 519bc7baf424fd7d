"""A class that signs in: ``python students.py HUB-URL PASSWORD NUMBER``.

Each student does over HTTP what a browser does: signs in, starts the server, starts a kernel on a slice, and runs a cell.  It prints a line of JSON
for each, with what the cell said, and ends when its standard input does; until then all kernels live.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import requests
import websocket

KERNEL = "gpu-v100-0.02"
CELL = """
from cuda.bindings import driver as d
d.cuInit(0)
d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
memory = d.cuMemAlloc(1 << 20)[1]
d.cuMemsetD32(memory, 7, 1 << 18)
back = bytearray(1 << 20)
d.cuMemcpyDtoH(back, memory, 1 << 20)
print(d.cuMemGetInfo()[2] >> 20, back == b"\\7\\0\\0\\0" * (1 << 18))
"""
PATIENCE = 600


class Student:
    """A person with a browser."""

    def __init__(self, hub: str, name: str) -> None:
        self.hub, self.name = hub, name
        self.browser = requests.Session()
        self.token = ""

    def _xsrf(self) -> str:
        return next(
            one.value or "" for one in self.browser.cookies if one.name == "_xsrf" and one.path == "/hub/"
        )

    def sign_in(self, password: str) -> None:
        """Fill in the form, and make a token for what a script asks."""
        page = f"{self.hub}/hub/login"
        self.browser.get(page, timeout=PATIENCE).raise_for_status()
        form = {"username": self.name, "password": password, "_xsrf": self._xsrf()}
        answer = self.browser.post(page, data=form, allow_redirects=False, timeout=PATIENCE)
        assert answer.status_code == 302, (self.name, answer.status_code)
        made = self.browser.post(
            f"{self.hub}/hub/api/users/{self.name}/tokens",
            json={"note": "class", "expires_in": 7200},
            headers={"X-XSRFToken": self._xsrf(), "Referer": f"{self.hub}/hub/token"},
            timeout=PATIENCE,
        )
        made.raise_for_status()
        self.token = made.json()["token"]

    def ask(self, method: str, path: str, body: object = None) -> requests.Response:
        """Ask with the token."""
        return requests.request(
            method,
            self.hub + path,
            json=body,
            headers={"Authorization": f"token {self.token}"},
            timeout=PATIENCE,
        )

    def start_server(self) -> None:
        """Start the server, again where the Hub starts as many as it may, and wait until it is ready."""
        while (answer := self.ask("POST", f"/hub/api/users/{self.name}/server")).status_code == 429:
            time.sleep(float(answer.headers.get("Retry-After", 5)))
        answer.raise_for_status()
        end = time.monotonic() + PATIENCE
        while not self.ask("GET", f"/hub/api/users/{self.name}").json()["servers"].get("", {}).get("ready"):
            assert time.monotonic() < end, f"{self.name}'s server does not come"
            time.sleep(1)

    def run(self, code: str) -> str:
        """Start a kernel on a slice and return what a cell prints there; the kernel lives on."""
        body = {"path": "a.ipynb", "name": "a", "type": "notebook", "kernel": {"name": KERNEL}}
        answer = self.ask("POST", f"/user/{self.name}/api/sessions", body)
        assert answer.ok, answer.text
        kernel = answer.json()["kernel"]["id"]
        address = f"{self.hub.replace('http', 'ws', 1)}/user/{self.name}/api/kernels/{kernel}/channels"
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": "execute_request",
            "username": self.name,
            "session": uuid.uuid4().hex,
            "version": "5.3",
            "date": "",
        }
        content = {"code": code, "silent": False, "store_history": False, "user_expressions": {}}
        message = {
            "header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"
        }  # fmt: skip
        said = ""
        link = websocket.create_connection(
            address, header=[f"Authorization: token {self.token}"], timeout=PATIENCE
        )
        link.send(json.dumps(message))
        while True:
            heard = json.loads(link.recv())
            if heard["parent_header"].get("msg_id") != header["msg_id"]:
                continue
            kind, what = heard["msg_type"], heard["content"]
            if kind == "stream":
                said += what["text"]
            elif kind == "error":
                said += f"{what['ename']}: {what['evalue']}"
            elif kind == "status" and what["execution_state"] == "idle":
                link.close()
                return said.strip()


def lesson(hub: str, name: str, password: str) -> dict[str, str]:
    """Do what one student does."""
    student = Student(hub, name)
    try:
        student.sign_in(password)
        student.start_server()
        return {"name": name, "said": student.run(CELL)}
    except (AssertionError, OSError, KeyError, websocket.WebSocketException) as error:
        return {"name": name, "said": f"{type(error).__name__}: {error}"}


def main() -> None:
    hub, password, number = sys.argv[1:]
    names = [f"student{n:02}" for n in range(1, int(number) + 1)]
    with ThreadPoolExecutor(10) as threads:
        for said in threads.map(lambda name: lesson(hub, name, password), names):
            print(json.dumps(said), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
