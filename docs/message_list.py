"""MkDocs hook: replaces ``<!-- messages: TOPIC -->`` by the sentences of that topic that the code can say, from the code itself.

A sentence is the text of an error that is made for people, or of a reason that the pool gives.  What differs from time to time stands
as …, so a search for any of the other words finds its line.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
MARK = re.compile(r"^<!-- messages: (.+?) -->$", re.MULTILINE)

TOPICS = {
    "no slice": ("gpukernel/pool/domain", "gpukernel/pool/scheduling", "gpukernel/pool/leases", "gpukernel/common/policy.py", "gpukernel/common/model.py", "gpukernel/common/slice_request.py"),
    "notebook": ("gpukernel/jupyter",),
    "program": ("gpukernel/remoting", "gpukernel/native"),
    "command": ("gpukernel/cli", "gpukernel/embedded.py"),
    "pool is away": ("gpukernel/client", "gpukernel/common/connection", "gpukernel/common/address.py", "gpukernel/common/account.py", "gpukernel/common/machine.py"),
    "not allowed": ("gpukernel/pool/auth", "gpukernel/pool/doors"),
    "courses and quotas": ("gpukernel/pool/policy", "gpukernel/common", "gpukernel/pool/rpc", "gpukernel/pool/store", "gpukernel/pool"),
    "GPU server": ("gpukernel/agent",),
    "JupyterHub": ("hub_spawner",),
    "containers, Slurm": ("gpukernel/engines", "gpukernel/cli/engines"),
}  # fmt: skip
"""The files of each topic; the longest beginning of a file's path decides."""
BUILD = "gpukernel/native/codegen"  # tells developers that a table is wrong

ERRORS = re.compile(
    r"(?:Refused|Problem|PoolError|PoolUnreachable|UnknownToken|NotAllowed|LeaseEnded|Slice\w+|Worker\w+|LeaseFileError|NoCgroups|Unfit|Tls\w+"
    r"|HubAway|InvalidSpec|ChoiceRefused|TooMany|Slurm(?:Away|Refused)|DemoFailed|BundleError|NoDevices|ConfinementImpossible|NotTheJobs"
    r"|DriverNotFound|PoolDidNotStart|NativePartMissing|Conflict|HTTPError)"
)
_CPP = re.compile(r'\bcomplain\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)')


def _text(node: ast.expr) -> str:
    """Return a text's constant parts, with … between them; empty for what is no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return (left or "…") + (right or "…") if left or right else ""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("say", "_") and node.args:
        return _text(node.args[0])
    return ""


def of_python(source: str) -> Iterator[str]:
    """Return the texts of a Python file's errors and reasons, with their values as they are written."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name == "say" or ERRORS.fullmatch(name):
                yield from map(_text, node.args)


def of_cpp(source: str) -> Iterator[str]:
    """Return what a C++ file of the shim complains of."""
    for found in _CPP.finditer(source):
        yield "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', found[1]))


def topic_of(path: str) -> str:
    """Return the topic of a file; empty where it has none."""
    fitting = {
        start: topic
        for topic, starts in TOPICS.items()
        for start in starts
        if path == start or path.startswith(start + "/")
    }
    return fitting[max(fitting, key=len)] if fitting else ""


@functools.cache
def messages() -> dict[str, set[str]]:
    """Return the sentences of each file that says any; a path from the root of the tree is the key."""
    found: dict[str, set[str]] = {}
    for suffix, read in ((".py", of_python), (".cpp", of_cpp)):
        for root in ("gpukernel", "hub_spawner"):
            for path in sorted((ROOT / root).rglob(f"*{suffix}")):
                name = str(path.relative_to(ROOT))
                if name.startswith(BUILD):
                    continue
                texts = (" ".join(re.sub(r"%\(\w+\)s", "…", one).split()) for one in read(path.read_text()))
                if sentences := {one for one in texts if len(one.replace("…", "").split()) > 2}:
                    found[name] = sentences
    return found


def listed(topic: str) -> Iterator[str]:
    """Return the lines of a topic: each sentence once, by its first words."""
    sentences = {one for path, said in messages().items() if topic_of(path) == topic for one in said}
    for one in sorted(sentences, key=lambda text: re.sub(r"\W", "", text).lower()):
        yield "* " + escaped(one)


def escaped(text: str) -> str:
    """Return a sentence as Markdown has it."""
    return re.sub(r"([\\`*_<>|\[\]])", r"\\\1", text)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the marks."""
    return MARK.sub(lambda mark: "\n".join(listed(mark[1])), markdown)
