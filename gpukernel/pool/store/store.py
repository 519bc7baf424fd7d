"""The pool's state in its database, by subject."""

from __future__ import annotations

from pathlib import Path

from gpukernel.pool.store.database import Database, database_url
from gpukernel.pool.store.deciders import Deciders
from gpukernel.pool.store.devices import Devices
from gpukernel.pool.store.leases import Leases
from gpukernel.pool.store.policy import StoredPolicy
from gpukernel.pool.store.servers import Servers

__all__ = ["Store"]


class Store(Database):
    """The database with its `policy`, `servers`, `devices`, `leases` and `deciders`; they share its transactions."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.policy = StoredPolicy(self)
        self.servers = Servers(self)
        self.devices = Devices(self)
        self.leases = Leases(self, self.policy)
        self.deciders = Deciders(self)
        self.on_renewed += [self.policy.forget, self.devices.forget, self.servers.agents.doubt_all]

    @classmethod
    def in_directory(cls, state: Path) -> Store:
        """Open the database of a state directory."""
        return cls(database_url(state))
