"""One trace of a grant, across a client, a pool and an agent that are processes of their own, as an OTLP receiver sees it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_rpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from gpukernel.common.address import resolve_address
from tests.conftest import eventually

SECRETIVE = "die-geheime-arbeit.py"


class Received:
    """The spans that an OTLP receiver was sent, with the names of their services."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []
        self.raw = b""
        self._lock = threading.Lock()

    def take(self, request: Any) -> None:
        with self._lock:
            self.raw += request.SerializeToString()
            for of_resource in request.resource_spans:
                about = {one.key: one.value.string_value for one in of_resource.resource.attributes}
                for scope in of_resource.scope_spans:
                    self.spans += [(about["service.name"], span) for span in scope.spans]

    def named(self, service: str, name: str) -> list[Span]:
        with self._lock:
            return [span for one, span in self.spans if (one, span.name) == (service, name)]


@contextmanager
def grpc_receiver(received: Received) -> Iterator[str]:
    class Receiver(otlp_rpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            received.take(request)
            return otlp.ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(2))
    otlp_rpc.add_TraceServiceServicer_to_server(Receiver(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop(None)


@contextmanager
def http_receiver(received: Received) -> Iterator[str]:
    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.take(otlp.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


RECEIVERS = {"grpc": grpc_receiver, "http/protobuf": http_receiver}


class Processes:
    """A pool and an agent, each a process with the environment that a test wants."""

    def __init__(self, place: Path, telling: dict[str, str]) -> None:
        self.place = place
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "GPUKERNEL_"))}
        self.environment |= telling | {"OTEL_BSP_SCHEDULE_DELAY": "100"}
        self.started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Processes:
        self.start("pool", "--state", str(self.place / "pool"))
        address = resolve_address(None, self.place / "pool")
        self.start("agent", "--state", str(self.place / "agent"), "--pool", address, "--simulate", "v100:1")
        self.environment["GPUKERNEL_POOL"] = address
        return self

    def start(self, *words: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpukernel.cli", *words],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        assert process.stdout is not None
        said = ""
        while "is ready" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        threading.Thread(target=process.stdout.read, daemon=True).start()

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        program = self.place / SECRETIVE
        program.write_text("print('done')")
        return subprocess.run(
            [sys.executable, "-m", "gpukernel.cli", "run", *options, "--", sys.executable, str(program)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def __exit__(self, *_: object) -> None:
        for process in reversed(self.started):
            process.terminate()
            process.wait(30)


@pytest.mark.parametrize("protocol", RECEIVERS)
def test_a_grant_is_one_trace_across_the_processes(tmp_path: Path, protocol: str) -> None:
    received = Received()
    with RECEIVERS[protocol](received) as address:
        telling = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
        with Processes(tmp_path, telling) as processes:
            done = processes.run("-p", "0.1")
            assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
            (start,) = eventually(lambda: received.named("gpukernel-agent", "gpukernel.worker.start"))
            (order,) = eventually(lambda: received.named("gpukernel-pool", "gpukernel.order.start_worker"))
            (server,) = eventually(lambda: received.named("gpukernel-pool", "gpukernel.v1.Pool/Acquire"))
            (client,) = eventually(lambda: received.named("gpukernel-run", "gpukernel.v1.Pool/Acquire"))
    assert {span.trace_id for span in (start, order, server, client)} == {client.trace_id}
    assert not client.parent_span_id
    assert server.parent_span_id == client.span_id
    assert order.parent_span_id == server.span_id
    assert start.parent_span_id == order.span_id
    kinds = [span.kind for span in (client, server, order, start)]
    assert kinds == [
        Span.SPAN_KIND_CLIENT,
        Span.SPAN_KIND_SERVER,
        Span.SPAN_KIND_PRODUCER,
        Span.SPAN_KIND_CONSUMER,
    ]
    about = {one.key: one.value.string_value for one in server.attributes}
    assert (about["rpc.system"], about["rpc.service"], about["rpc.method"]) == (
        "grpc",
        "gpukernel.v1.Pool",
        "Acquire",
    )
    (lease,) = {
        one.value.string_value
        for span in (client, server, order, start)
        for one in span.attributes
        if one.key == "gpukernel.lease.id"
    }
    assert re.fullmatch(r"[0-9a-z-]+", lease)
    # The server's span lasts from the request until the worker listens.
    assert server.start_time_unix_nano <= start.start_time_unix_nano
    assert SECRETIVE.encode() not in received.raw
    assert str(tmp_path).encode() not in received.raw


def test_what_is_refused_is_an_error_by_its_kind_alone(tmp_path: Path) -> None:
    received = Received()
    with grpc_receiver(received) as address:
        telling = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
        with Processes(tmp_path, telling) as processes:
            assert processes.run("-p", "0.1", "--model", "no such model").returncode != 0
            (server,) = eventually(lambda: received.named("gpukernel-pool", "gpukernel.v1.Pool/Acquire"))
    assert server.status.code == Status.STATUS_CODE_ERROR
    assert not server.status.message
    about = {one.key: one.value.string_value for one in server.attributes}
    assert about["error.type"]
    assert b"no such model" not in received.raw


def test_a_sampler_that_takes_nothing_sends_nothing(tmp_path: Path) -> None:
    received = Received()
    with grpc_receiver(received) as address:
        telling = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": address,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0",
        }
        with Processes(tmp_path, telling) as processes:
            assert processes.run("-p", "0.1").returncode == 0
    # They have ended, and send what they have before.
    assert not received.spans


def test_an_exporter_that_there_is_not_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpukernel.cli", "pool", "--state", str(tmp_path / "pool")],
        env={**os.environ, "OTEL_TRACES_EXPORTER": "zipkin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "OTEL_TRACES_EXPORTER names “zipkin”; what there is: otlp, console, none." in done.stderr
