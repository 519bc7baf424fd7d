"""The service ``Tokens``: what the holder of a token asks about it, and its renewal."""

from __future__ import annotations

import time

import grpc

import gpukernel.common.proto.admin_pb2 as pb
import gpukernel.common.proto.admin_pb2_grpc as rpc
from gpukernel.pool.auth.identity import Identity
from gpukernel.pool.auth.tokens import Certify, Token, renew_token, show_token
from gpukernel.pool.rpc.callers import Access, or_refuse, refuse, unary
from gpukernel.pool.store.store import Store

__all__ = ["TokensService", "token_to"]


class TokensService(rpc.TokensServicer):
    """The service of those who have a token."""

    def __init__(self, store: Store, identity: Identity, certify: Certify | None = None) -> None:
        self._store = store
        self.identity = identity
        self._certify = certify

    @unary
    async def ShowToken(self, request: pb.ShowTokenRequest, access: Access) -> pb.ShowTokenReply:
        """Answer with the token of the call."""

        def work() -> pb.ShowTokenReply:
            found = show_token(self._store, _own(access))
            return pb.ShowTokenReply(token=token_to(found) if found is not None else None)

        return await or_refuse(access.context, work)

    @unary
    async def RenewToken(self, request: pb.RenewTokenRequest, access: Access) -> pb.RenewTokenReply:
        """Renew the token of the call; an administrator renews any other."""
        own = _own(access)
        if request.id not in ("", own) and not access.caller.administers:
            await refuse(
                access.context,
                grpc.StatusCode.PERMISSION_DENIED,
                f"{access.caller.name} may renew their own token only.",
            )
        if not (request.id or own):
            await refuse(
                access.context,
                grpc.StatusCode.INVALID_ARGUMENT,
                "This call has no token that could be renewed: an account of the pool's machine and the tokens in the pool's own files do not end.",
            )

        def work() -> pb.RenewTokenReply:
            token, certificate = renew_token(
                self._store,
                request.id or own,
                access.caller.name,
                time.time(),
                self._certify if request.with_certificate else None,
            )
            return pb.RenewTokenReply(token=token_to(token), certificate=certificate)

        return await or_refuse(access.context, work)


def _own(access: Access) -> str:
    """Return the id of the token of the call; empty where it has none."""
    return next(iter(access.caller.tokens), "")


def token_to(token: Token) -> pb.Token:
    """Return a token as the pool's answers have it."""
    return pb.Token(**{name: getattr(token, name) for name in Token.__dataclass_fields__})
