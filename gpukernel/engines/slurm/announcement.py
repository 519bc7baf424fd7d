"""The announcement to the pool of what a supply can bring, so that people can wait for a job while there is none.

The GPUs of its jobs are those that the pool has seen of the last one, and before the first one those that the supply was told of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable

from gpukernel.client.admin import AdminClient, AnnouncedKind
from gpukernel.common.errors import PoolError, PoolUnreachable
from gpukernel.common.model import Device
from gpukernel.engines.slurm.journal import Journal
from gpukernel.engines.slurm.records import Records

__all__ = ["Announcement", "parse_gpu"]

VALID_SECONDS = 300.0
"""Seconds for which an announcement counts when the supply is gone; it looks once a minute at least."""

MIB = 1 << 20
_NOT_KNOWN = (
    "Nobody can wait for a job of this supply yet, since it does not know what its jobs' GPUs are: "
    "say --gpu 'Tesla V100-SXM2-32GB, 32768 MiB', or let one run with --min 1."
)


def parse_gpu(text: str) -> tuple[str, int]:
    """Return the model and the bytes in a line of ``nvidia-smi --query-gpu=name,memory.total --format=csv,noheader``.

    Raises
    ------
    ValueError
        With a sentence.
    """
    match = re.fullmatch(r"\s*([^,]{1,100}?)\s*,\s*(\d{1,9})\s*(MiB|GiB)\s*", text)
    if match is None or not int(match[2]):
        raise ValueError(
            f"“{text[:60]}” is no GPU; write it as “nvidia-smi --query-gpu=name,memory.total --format=csv,noheader” does on a node: "
            "'Tesla V100-SXM2-32GB, 32768 MiB'."
        )
    return match[1], int(match[2]) * (MIB << 10 if match[3] == "GiB" else MIB)


class Announcement:
    """The announcement of the supply `name`, whose records have what was seen of its jobs' GPUs."""

    def __init__(self, records: Records, name: str, gpus: int, told: tuple[str, int] | None) -> None:
        self.records, self._name, self._gpus = records, name, gpus
        self._seen = self._written = self._read()
        self._kinds = self._seen or ({told} if told else set())

    def _read(self) -> set[tuple[str, int]]:
        try:
            found = json.loads((self.records.folder / "gpus.json").read_text())
            return {(str(name), int(size)) for name, size in found}
        except (OSError, ValueError, TypeError):
            return set()

    @property
    def kinds(self) -> list[AnnouncedKind]:
        """Return the models of the jobs' GPUs, as far as they are known."""
        return [AnnouncedKind(name, size, self._gpus) for name, size in sorted(self._kinds)]

    def learn(self, devices: Iterable[Device], servers: Collection[str]) -> None:
        """Look at the devices of the supply's own servers; what is there counts, whatever was told."""
        seen = {(one.name, one.memory_bytes) for one in devices if one.server in servers and one.available}
        self._seen, self._kinds = seen or self._seen, seen or self._kinds

    def keep(self) -> None:
        """Write down what was seen, for the next supply."""
        if self._seen != self._written:
            self.records.write(self.records.folder / "gpus.json", json.dumps(sorted(self._seen)))
            self._written = self._seen

    async def make(self, client: AdminClient, journal: Journal, *, may_come: bool, none_there: bool) -> None:
        """Tell the pool, or take it back where no job may come now; `none_there`: there is no job, and need be none."""
        self.keep()
        if may_come and none_there:
            models = " or ".join(one.name for one in self.kinds)
            journal.say_once(
                f"No job while nobody waits: whoever asks for a {models} starts one."
                if models
                else _NOT_KNOWN
            )
        try:
            await client.announce(self._name, self.kinds if may_come else [], VALID_SECONDS)
        except PoolUnreachable:
            raise
        except PoolError as error:  # an older pool, or no token
            journal.say_once(f"Nobody can wait for a job of this supply: {error}")
