"""``gpukernel token``: tokens, made, listed, renewed and revoked."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from gpukernel.cli.quota import Json, Pool, State, ask_admin
from gpukernel.cli.terminal.formats import Format, FormatOption, chosen, present
from gpukernel.cli.terminal.listing import Column, Listing
from gpukernel.cli.terminal.output import USAGE, seconds
from gpukernel.cli.terminal.usage import Group

__all__ = ["app"]

app = typer.Typer(
    help="Make, list, renew and revoke the tokens of a pool over TCP.", no_args_is_help=True, cls=Group
)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for, for the list.")],
    person: Annotated[
        str, typer.Option(metavar="PERSON", help="A person's own token: asks for that person only.")
    ] = "",
    scope: Annotated[
        str,
        typer.Option(
            metavar="SCOPE",
            help="Without --person: service (a JupyterHub: asks for anybody), agent (a GPU server), supply (who starts GPU servers), admin, or an engine: kubernetes or slurm.",
        ),
    ] = "",
    valid: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How long, such as 120d; 0: for ever. Else as the pool's setting says."
        ),
    ] = "",
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write it to a new file of mode 0600 instead of showing it; from a pool with TLS, with the pool's "
            "address and authority and a client certificate: all that --pool FILE or GPUKERNEL_POOL=FILE needs elsewhere.",
        ),
    ] = None,
    address: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="With --file: HOST:PORT or tls://HOST:PORT of a pool; again for each pool on its database. Else as the pools themselves say.",
        ),
    ] = None,
    pool: Pool = None,
    state: State = None,
) -> None:
    """Make a token and show it once: the pool keeps only a hash.

    \b
    Examples:
      gpukernel token create "anna's laptop" --person anna --valid 120d --file anna.pool
      gpukernel token create gpu1 --scope agent --file gpu1.pool
    """
    import os

    from gpukernel.cli.terminal.output import Problem
    from gpukernel.common.address import network_addresses
    from gpukernel.common.connection import write_connection
    from gpukernel.common.errors import PoolError

    chosen = scope or ("person" if person else "")
    if not chosen:
        raise Problem(
            "Say for whom: --person NAME, or --scope service, agent, supply, admin, kubernetes or slurm.",
            USAGE,
        )
    if address and file is None:
        raise Problem("Addresses stand in a connection file: say which with --file.", USAGE)
    try:
        addresses = network_addresses(",".join(address), "--address") if address else ()
    except PoolError as error:
        raise Problem(str(error), USAGE) from None
    if len({one.startswith("tls://") for one in addresses}) > 1:
        raise Problem(
            "Some of the addresses begin with tls:// and others do not; write it before all of them.", USAGE
        )
    span = seconds(valid) if valid.strip() else None
    descriptor = None
    if file is not None:
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Problem(f"{file} cannot be made: {error.strerror}.") from None
    try:
        if descriptor is None:
            print(ask_admin(pool, state, lambda c: c.create_token(name, person, chosen, span))[1])
            return
        token, connection = ask_admin(pool, state, lambda c: c.create_connection(name, person, chosen, span))
    except Problem:
        if file is not None:
            file.unlink()
        raise
    if addresses:
        connection = connection.at(addresses)
    remark = f"The way into the pool for {person or name} ({chosen}, token {token.id}): whoever has this file is let in."
    with os.fdopen(descriptor, "w") as target:
        target.write(write_connection(connection, remark))
    if connection.address:
        print(f"Token {token.id} for {connection.names} is in {file}; GPUKERNEL_POOL={file} uses it.")
    else:
        print(f"Token {token.id} is in {file}; GPUKERNEL_POOL_TOKEN_FILE={file} uses it.")


@app.command("list")
def list_(
    pool: Pool = None, state: State = None, form: FormatOption = Format.TABLE, json: Json = False
) -> None:
    """Show the tokens, without what only their holders know.

    \b
    Example:
      gpukernel token list
    """
    found = ask_admin(pool, state, lambda c: c.tokens())
    listing = Listing(
        [
            Column("Token", lambda token: token.id),
            Column("For", lambda token: token.name, least=12),
            Column("Scope", lambda token: token.scope, drop=2),
            Column("Person", lambda token: token.person, drop=3, least=8),
            Column("Made", lambda token: _day(token.created), drop=4),
            Column(
                "Ends",
                lambda token: f"revoked {_day(token.revoked)}" if token.revoked else _day(token.expires),
            ),
            Column("Certificate ends", lambda token: _day(token.certificate_expires), drop=5),
            Column("Made with", lambda token: token.made_with, drop=6),
        ],
        found,
        lambda token: token.id,
        lambda token: bool(token.revoked),
    )
    present(found, listing, chosen(form, json), "No token was made yet.")


@app.command()
def renew(
    token: Annotated[
        str,
        typer.Argument(
            metavar="TOKEN",
            help="An administrator's choice, as “gpukernel token list” shows it; else your own.",
        ),
    ] = "",
    pool: Pool = None,
    state: State = None,
) -> None:
    """Make a token valid for as long again as it was made for; its text stays the same.

    GPU servers and JupyterHubs renew theirs by themselves while they run.  A client certificate in your connection file is replaced.

    \b
    Examples:
      gpukernel token renew --pool gpu1.pool
      gpukernel token renew gpk0123456789
    """
    from gpukernel.cli.terminal.output import failure
    from gpukernel.client.admin import AdminClient
    from gpukernel.client.tokens import TokenLine, write_renewed
    from gpukernel.common.address import are_network_addresses, resolve_address
    from gpukernel.common.errors import PoolError

    async def ask(client: AdminClient) -> tuple[TokenLine, str]:
        certified = bool(client.connection.certificate) and not token
        return await client.renew_token(token, with_certificate=certified)

    renewed, certificate = ask_admin(pool, state, ask)
    if certificate:
        try:
            address = resolve_address(pool, state)
            if address.startswith("unix:") or are_network_addresses(address):
                raise PoolError(
                    "The new certificate has no connection file to be written to; name yours with --pool."
                )
            write_renewed(Path(address), certificate)
        except PoolError as error:
            raise failure(error) from None
    until = f"until {_day(renewed.expires)}" if renewed.expires else "without an end"
    print(f"Token {renewed.id} ({renewed.name}) is valid {until}.")


@app.command()
def revoke(
    token: Annotated[
        str, typer.Argument(metavar="TOKEN", help="Its id, as “gpukernel token list” shows it.")
    ],
    cascade: Annotated[
        bool,
        typer.Option(
            "--cascade",
            help="Tokens that were made with it, too: a JupyterHub's for single-user servers, a supply's for GPU servers.",
        ),
    ] = False,
    pool: Pool = None,
    state: State = None,
) -> None:
    """Let nobody in with this token any more.

    \b
    Examples:
      gpukernel token revoke gpk0123456789
      gpukernel token revoke gpk0123456789 --cascade    # it was stolen
    """
    revoked, others = ask_admin(pool, state, lambda c: c.revoke_token(token, cascade=cascade))
    print(f"Token {revoked.id} ({revoked.name}) is revoked.")
    if others and cascade:
        print(f"Tokens made with it that are revoked, too: {others}.")
    elif others:
        more = f"“gpukernel token revoke {revoked.id} --cascade” revokes them, too"
        print(f"Tokens made with it that still count: {others}; {more}.")


def _day(when: float) -> str:
    return datetime.datetime.fromtimestamp(when).date().isoformat() if when else ""
