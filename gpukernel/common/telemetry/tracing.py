"""Traces of grants by OpenTelemetry: from the client's call through the pool's queue to the worker's start on a GPU server.

Guarantees
----------
* Without ``OTEL_…`` in a process's environment nothing of OpenTelemetry is imported, and a span costs a call.
* A context travels as W3C's ``traceparent`` alone: in gRPC's metadata, in the order to start a worker, in the worker's environment.
* Attributes name leases, courses, servers and devices: no person, no token, no secret, no command, no file.

Spans and attributes have the names of OpenTelemetry's semantic conventions where these have one (``rpc.system``, ``rpc.service``,
``rpc.method``, ``error.type``); ours begin with ``gpukernel.``.  What is exported, where to and how much is sampled say the variables of
OpenTelemetry's specification; `start_tracing` reads those that its SDK leaves to programs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from gpukernel.common.errors import PoolError

__all__ = ["TRACEPARENT", "TracedCall", "received_context", "rpc_attributes", "start_tracing", "traced"]

log = logging.getLogger(__name__)

TRACEPARENT = "traceparent"
"""The key of gRPC's metadata (and, in capitals, the variable of a program's environment) with the context of a trace."""

_VALID = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_EXPORTERS = ("otlp", "console", "none")
_PROTOCOLS = ("http/protobuf", "grpc")

Kind = Literal["internal", "server", "client", "producer", "consumer"]
Attributes = Mapping[str, str | int | float | bool]


class TracedCall:
    """One span, or the place of one where nothing is traced.

    Attributes
    ----------
    traceparent
        Its context, for whoever goes on with the work; empty where nothing is traced.
    """

    def __init__(self, span: Any = None, traceparent: str = "") -> None:
        self._span = span
        self.traceparent = traceparent

    def attribute(self, name: str, value: str | float | bool) -> None:
        """Set an attribute."""
        if self._span is not None:
            self._span.set_attribute(name, value)

    def event(self, name: str) -> None:
        """Record that something happened now."""
        if self._span is not None:
            self._span.add_event(name)

    def failed(self, kind: str) -> None:
        """Mark the work as failed, with a stable word for the kind of error."""
        if self._span is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_status(StatusCode.ERROR)
            self._span.set_attribute("error.type", kind)


_NOTHING = TracedCall()


def start_tracing(service: str) -> bool:
    """Export this process's spans as its environment says; return whether it says so.

    Parameters
    ----------
    service
        The name of the service, unless ``OTEL_SERVICE_NAME`` or ``OTEL_RESOURCE_ATTRIBUTES`` gives one.

    Raises
    ------
    PoolError
        When a variable names an exporter or a protocol that there is not.
    """
    told = os.environ.get
    if told("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = told("OTEL_TRACES_EXPORTER", "")
    endpoint = told("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or told("OTEL_EXPORTER_OTLP_ENDPOINT")
    exporter = exporter or ("otlp" if endpoint else "none")
    protocol = told("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or told("OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = protocol or _PROTOCOLS[0]
    _one_of("OTEL_TRACES_EXPORTER", exporter, _EXPORTERS)
    if exporter == "none":
        return False
    if exporter == "otlp":
        _one_of("OTEL_EXPORTER_OTLP_PROTOCOL", protocol, _PROTOCOLS)
    try:
        _install(service, exporter, protocol)
    except ImportError:
        log.warning(
            "nothing is traced: OTEL_… asks for it, and OpenTelemetry is not installed; pip install 'gpukernel[telemetry]'"
        )
        return False
    return True


def _one_of(variable: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise PoolError(f"{variable} names “{value[:40]}”; what there is: {', '.join(known)}.")


def _install(service: str, exporter: str, protocol: str) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

    out: SpanExporter
    if exporter == "console":
        out = ConsoleSpanExporter(out=sys.stderr)
    elif protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        import gpukernel.common.fork_safe_grpc  # noqa: F401  # before the exporter imports gRPC

        out = GrpcExporter()
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        out = HttpExporter()
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    # The sampler, limits and batches are read from the environment by the SDK itself.
    provider = TracerProvider(resource=Resource.create({} if named else {"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(out))
    trace.set_tracer_provider(provider)


def received_context(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Return the context that came with a call; empty where none came, or something else."""
    for key, value in metadata or ():
        if key == TRACEPARENT and isinstance(value, str) and _VALID.fullmatch(value):
            return value
    return ""


def rpc_attributes(service: str, method: str) -> dict[str, str | int | float | bool]:
    """Return what the semantic conventions want of a call."""
    return {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}


@contextlib.contextmanager
def traced(
    name: str, kind: Kind = "internal", attributes: Attributes | None = None, parent: str = ""
) -> Iterator[TracedCall]:
    """Trace what is done in a context; an error that leaves it is its kind of error, without its text.

    Parameters
    ----------
    parent
        A ``traceparent``; empty: the span that the program is in, if it traces itself, or a new trace.
    """
    # Where nobody has loaded it there is no provider.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        yield _NOTHING
        return
    context = _context_of(parent) if parent else None
    span = trace.get_tracer("gpukernel").start_span(
        name, context, trace.SpanKind[kind.upper()], attributes=dict(attributes or {})
    )
    call = TracedCall(span, _traceparent_of(span))
    try:
        yield call
    except GeneratorExit:
        raise  # who asked has gone; nothing has failed
    except BaseException as error:
        call.failed(type(error).__name__)
        raise
    finally:
        span.end()


def _context_of(parent: str) -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({TRACEPARENT: parent})


def _traceparent_of(span: Any) -> str:
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
