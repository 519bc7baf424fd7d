"""Contexts of traces as strangers may send them, and what tracing costs where nobody wants it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpukernel.common.telemetry.tracing import received_context

GOOD = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.mark.parametrize(
    "value", ["", "x", GOOD + "0", GOOD.upper(), GOOD.replace("00-", "ff-"), GOOD + "\n", GOOD.encode()]
)
def test_what_is_no_context_counts_as_none(value: str | bytes) -> None:
    assert received_context([("traceparent", value)]) == ""


def test_a_context_is_found_among_the_metadata() -> None:
    assert received_context([("authorization", "Bearer x"), ("traceparent", GOOD)]) == GOOD
    assert received_context(None) == ""


def test_nothing_of_opentelemetry_is_loaded_where_nobody_asks_for_it() -> None:
    program = (
        "import sys, gpukernel.cli.services, gpukernel.client.pool as client\n"
        "from gpukernel.common.telemetry.tracing import start_tracing, traced\n"
        "assert not start_tracing('gpukernel')\n"
        "with traced('a') as call:\n"
        "    call.attribute('b', 1); call.event('c'); call.failed('d')\n"
        "assert not call.traceparent\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_a_process_that_lacks_opentelemetry_says_so_and_goes_on() -> None:
    program = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "from gpukernel.common.telemetry.tracing import start_tracing\n"
        "assert not start_tracing('gpukernel')\n"
    )
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "otlp"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    assert "gpukernel[telemetry]" in done.stderr
