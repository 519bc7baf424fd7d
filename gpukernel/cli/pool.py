"""``gpukernel pool``: the pool alone, and its certificate."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gpukernel.cli.options import (
    CallsAtOnce,
    CallsPerSecond,
    Form,
    Grace,
    HubApi,
    Level,
    LogFormat,
    LogLevel,
    State,
)
from gpukernel.cli.terminal.usage import Group

__all__ = ["app"]

app = typer.Typer(help="Run the pool alone; make its certificate.", cls=Group)


class ClientCertificates(StrEnum):
    """The values of ``--client-certificates``."""

    OFF = "off"
    REQUIRE = "require"


@app.callback(invoke_without_command=True)
def pool(
    context: typer.Context,
    listen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Also listen on TCP, with tokens; may be given again. HOST:PORT=require and HOST:PORT=off say for one address "
            "whether client certificates must be shown there.",
        ),
    ] = None,
    everybody: Annotated[
        bool,
        typer.Option(
            "--everybody",
            help="Every account of this machine may ask over the unix socket, each for itself.",
        ),
    ] = False,
    metrics: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Serve figures for Prometheus there, under /metrics.")
    ] = "",
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Show this certificate over TCP, not “gpukernel pool init”'s."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its key, where that is not in the same file.")
    ] = None,
    client_certificates: Annotated[
        ClientCertificates,
        typer.Option(
            envvar="GPUKERNEL_CLIENT_CERTIFICATES",
            help="Whether clients and GPU servers must show the certificate in their connection file, at every address that does not say.",
        ),
    ] = ClientCertificates.OFF,
    hub_api: HubApi = "",
    calls_per_second: CallsPerSecond = 10.0,
    calls_at_once: CallsAtOnce = 500.0,
    token_validity: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            envvar="GPUKERNEL_TOKEN_VALIDITY",
            help="How long a new token is valid where “token create” does not say; 0: for ever.",
        ),
    ] = "365d",
    grace: Grace = "5m",
    state: State = None,
    log_level: LogLevel = Level.INFO,
    log_format: LogFormat = Form.TEXT,
) -> None:
    """Run the pool alone; GPU servers join it with “gpukernel agent”.

    Its state is an SQLite file in the state directory, or the PostgreSQL database that GPUKERNEL_DATABASE names; several pools may
    share one.  Once “gpukernel pool init” has made a certificate, TCP is TLS and nothing else.

    \b
    Examples:
      gpukernel pool --listen 0.0.0.0:7437 --state /var/lib/gpukernel
      gpukernel pool --listen 0.0.0.0:7437 --tls-cert fullchain.pem --tls-key privkey.pem
      gpukernel pool --listen 0.0.0.0:7437 --client-certificates require
      gpukernel pool --listen 0.0.0.0:7437=require --listen 10.0.0.5:7438=off
      gpukernel pool --listen 0.0.0.0:7437 --hub-api https://hub.example.edu/hub/api
      GPUKERNEL_DATABASE=postgresql://pool@db.example.edu/pool gpukernel pool --listen 0.0.0.0:7437
    """
    from gpukernel.cli.terminal.output import Problem, seconds

    if context.invoked_subcommand is not None:
        if listen or everybody or metrics or tls_cert or tls_key:
            raise Problem(f"“gpukernel pool {context.invoked_subcommand}” takes only its own options.", 2)
        context.obj = state
        return
    if tls_key and not tls_cert:
        raise Problem("--tls-key needs --tls-cert.", 2)
    if tls_cert and not listen:
        raise Problem("--tls-cert is for TCP; say where with --listen HOST:PORT.", 2)
    from gpukernel.cli import services
    from gpukernel.common.errors import PoolError
    from gpukernel.pool.auth.listeners import read_listeners

    try:
        listeners = read_listeners(listen or (), client_certificates is ClientCertificates.REQUIRE)
    except PoolError as error:
        raise Problem(str(error), 2) from None
    services.pool(
        listeners,
        everybody,
        metrics,
        tls_cert,
        tls_key,
        hub_api,
        max(seconds(token_validity), 0.0),
        grace,
        calls_per_second,
        calls_at_once,
        state,
        log_level,
        log_format,
    )


@app.command()
def init(
    context: typer.Context,
    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="A host name or address by which GPU servers and clients find the pool; may be given again.",
        ),
    ] = None,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew",
            help="Make a new certificate, for the same names unless others are given; nothing is interrupted.",
        ),
    ] = False,
    state: State = None,
) -> None:
    """Make a certificate authority of the pool's own, and the pool's certificate: TLS for everything over TCP.

    All of it lies in the state directory under tls/, readable only by its owner, and nothing is overwritten.

    \b
    Examples:
      gpukernel pool init --name pool.example.edu --state /var/lib/gpukernel
      gpukernel pool init --renew --state /var/lib/gpukernel
    """
    import datetime
    import time

    from gpukernel.cli.terminal.output import Problem, failure
    from gpukernel.common.address import resolve_state
    from gpukernel.common.errors import PoolError
    from gpukernel.pool.auth.certificate_authority import init_authority, renew_certificate
    from gpukernel.pool.rpc.server import prepare_state

    directory = resolve_state(state or context.obj)
    try:
        if renew:
            made = renew_certificate(directory, name or [], time.time())
        else:
            made = init_authority(prepare_state(directory), name or [], time.time())
    except PoolError as error:
        raise failure(error) from None
    except OSError as error:
        raise Problem(f"{directory} cannot be used: {error.strerror}.") from None
    until = datetime.datetime.fromtimestamp(made.expires).date().isoformat()
    print(f"The pool's certificate is in {directory}/tls, for {', '.join(made.names)}, good until {until}.")
    if renew:
        print(
            "A running pool shows it from the next connection on; clients and GPU servers need nothing new."
        )
        return
    where = f" --state {directory}" if state or context.obj else ""
    print(_NEXT_STEPS.format(where=where, directory=directory))


_NEXT_STEPS = """
What comes next
  1. Start the pool (again):   gpukernel pool --listen 0.0.0.0:7437{where}
  2. For each GPU server:      gpukernel token create gpu1 --scope agent --file gpu1.pool{where}
     copy gpu1.pool there:     gpukernel agent --pool gpu1.pool --tcp-host gpu1.example.edu
  3. For JupyterHub:           gpukernel token create hub --scope service --file hub.pool{where}
     copy hub.pool there, and set GPUKERNEL_POOL=/path/hub.pool
  4. For a person elsewhere:   gpukernel token create "anna's laptop" --person anna --valid 120d --file anna.pool{where}
     who then sets GPUKERNEL_POOL=/path/anna.pool, and tries it:  gpukernel health
  5. Keep a copy of {directory}/tls in a safe place: whoever has ca.key can stand in for the pool.
  6. Once all have their file: gpukernel pool --listen 0.0.0.0:7437 --client-certificates require{where}
     lets nobody in who shows no certificate; a token that is stolen without its file is worth nothing then
  7. Every other year:         gpukernel pool init --renew{where}"""
