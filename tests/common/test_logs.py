"""The log of the servers: one line an event, with the lease's names, also when attacked."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from gpukernel.common import logs

log = logging.getLogger("gpukernel.tests")
FORGED = 'ann\n2026-09-01 10:00:00.000 INFO pool: granted lease="x" \x1b[31m\u2028'


@pytest.fixture
def restored() -> Iterator[None]:
    """Restore logging as pytest has it, afterwards."""
    root, own = logging.getLogger(), logging.getLogger("gpukernel")
    before = root.handlers[:], root.level, own.level
    yield
    root.handlers[:], root.level, own.level = before


def written(form: logs.Form, level: logs.Level = logs.Level.INFO) -> str:
    stream = io.StringIO()
    logs.configure(level, form, stream)
    about = logs.fields(lease="5ffa", person=FORGED, course="", server="gpu1", device="gpu1/0")
    log.info("ends: %s", "because\nof this", extra=about)
    log.debug("unimportant")
    logging.getLogger("somebody.else").info("chatter")
    return stream.getvalue()


@pytest.mark.usefixtures("restored")
def test_a_line_for_people_has_its_fields_and_cannot_be_forged() -> None:
    (line,) = written(logs.Form.TEXT).splitlines()
    assert re.match(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} INFO tests: ends: because\\nof this lease=5ffa ", line
    )
    assert line.endswith(' course="" server=gpu1 device=gpu1/0')
    assert "\x1b" not in line


@pytest.mark.usefixtures("restored")
def test_a_json_line_is_an_object_with_the_same_fields() -> None:
    (line,) = written(logs.Form.JSON).splitlines()
    found = json.loads(line)
    assert [found[name] for name in ("level", "message", "lease", "device")] == [
        "info",
        "ends: because\\nof this",
        "5ffa",
        "gpu1/0",
    ]
    assert "\n" not in found["person"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found["time"])


@pytest.mark.usefixtures("restored")
def test_a_traceback_is_one_line_in_json() -> None:
    stream = io.StringIO()
    logs.configure(logs.Level.INFO, logs.Form.JSON, stream)
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "ValueError: no" in json.loads(line)["exception"]


@pytest.mark.usefixtures("restored")
def test_levels_leave_lines_out() -> None:
    assert written(logs.Form.TEXT, logs.Level.ERROR) == ""
    assert "unimportant" in written(logs.Form.TEXT, logs.Level.DEBUG)
    assert "chatter" not in written(logs.Form.TEXT, logs.Level.DEBUG)


def test_lines_of_one_kind_are_summed_up_and_others_are_not() -> None:
    now, stream = [0.0], io.StringIO()
    handler = logs._Summing(stream, lambda: now[0])
    lines = logging.getLogger("gpukernel.tests.many")
    lines.propagate, lines.handlers = False, [handler]
    lines.setLevel(logging.INFO)
    for number in range(5000):
        lines.warning("refused: %s", number)
    lines.warning("something else")
    for number in range(100):
        try:
            raise ValueError(number)
        except ValueError:
            lines.exception("failed")
    assert stream.getvalue().count("refused") == logs.LINES_A_MINUTE
    assert stream.getvalue().count("Traceback") == logs.TRACEBACKS_A_MINUTE
    assert stream.getvalue().count("something else") == 1
    now[0] += 61
    lines.warning("refused: %s", "again")
    assert "… 4,400 more like this in the last minute: refused: %s" in stream.getvalue()
    assert "… 80 more like this in the last minute: failed" in stream.getvalue()
    assert stream.getvalue().endswith("refused: again\n")


def test_a_crowd_of_kinds_is_counted_as_one() -> None:
    stream = io.StringIO()
    handler = logs._Summing(stream, lambda: 0.0)
    for number in range(3000):
        handler.handle(logging.LogRecord("x", logging.INFO, "", 0, f"kind {number}", None, None))
    assert len(handler._counts) <= logs._MOST_KINDS + 1
    assert stream.getvalue().count("kind") == logs._MOST_KINDS + logs.LINES_A_MINUTE
