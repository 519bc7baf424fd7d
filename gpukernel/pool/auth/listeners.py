"""The TCP addresses at which a pool listens, and whether each asks for client certificates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpukernel.common.address import is_network_address
from gpukernel.common.errors import PoolError

__all__ = ["Listener", "read_listeners"]

_ASKS = {"require": True, "off": False}


@dataclass(frozen=True)
class Listener:
    """A TCP address, ``HOST:PORT``, and whether nobody gets in there who shows no client certificate."""

    address: str
    require_certificates: bool = False


def read_listeners(texts: Iterable[str], require_certificates: bool) -> tuple[Listener, ...]:
    """Return the listeners that are written as ``HOST:PORT``, or ``HOST:PORT=require`` or ``=off`` where one differs from the others.

    Raises
    ------
    PoolError
        With a sentence, where one is written otherwise or there twice.
    """
    found: dict[str, Listener] = {}
    for text in texts:
        address, equals, asks = text.partition("=")
        if equals and asks not in _ASKS:
            raise PoolError(
                f"“{text[:80]}” asks for client certificates in no way that there is; write {address[:60]}=require or {address[:60]}=off."
            )
        if not is_network_address(address) or address.startswith("tls://"):
            raise PoolError(
                f"“{address[:80]}” is no address to listen at; write HOST:PORT, such as 0.0.0.0:7437."
            )
        if address in found:
            raise PoolError(f"{address} is there twice; a pool listens at each address once.")
        found[address] = Listener(address, _ASKS[asks] if equals else require_certificates)
    return tuple(found.values())
