"""The administrator's word on TLS of the data path; `gpukernel.agent.data_path` acts on it."""

from __future__ import annotations

import enum

__all__ = ["DataTls"]


class DataTls(enum.StrEnum):
    """The choice of TLS between programs and workers over TCP; ``auto``: wherever the address is not loopback."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"
