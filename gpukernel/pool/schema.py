"""The pool's tables.  That a device is never promised twice is a constraint of the database itself."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    text,
)

__all__ = ["devices", "leases", "metadata", "slices"]

metadata = MetaData()

devices = Table(
    "devices",
    metadata,
    Column("id", String, primary_key=True),
    Column("server", String, nullable=False, index=True),
    Column("index", Integer, nullable=False),
    Column("name", String, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("promised_bytes", BigInteger, nullable=False, default=0),
    Column("compute_capability", String, nullable=False, default=""),
    Column("multiprocessors", Integer, nullable=False, default=0),
    CheckConstraint("promised_bytes >= 0 AND promised_bytes <= memory_bytes", name="never_promised_twice"),
)

leases = Table(
    "leases",
    metadata,
    Column("id", String, primary_key=True),
    Column("key", String, nullable=False),
    Column("person", String, nullable=False),
    Column("server", String, nullable=False),
    Column("course", String, nullable=False),
    Column("description", String, nullable=False),
    Column("secret", String, nullable=False),
    Column("state", String, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("created", Float, nullable=False),
    Column("expires", Float, nullable=False),
    Column("ttl_seconds", Float, nullable=False),
    Column("ended", Float, nullable=False, default=0.0),
    Column("end_reason", String, nullable=False, default=""),
    CheckConstraint("state IN ('starting', 'live', 'ending', 'ended')", name="known_state"),
    # One key, one living lease: asking twice cannot give two.
    Index(
        "one_living_lease_a_key",
        "key",
        unique=True,
        sqlite_where=text("state <> 'ended'"),
        postgresql_where=text("state <> 'ended'"),
    ),
)

slices = Table(
    "slices",
    metadata,
    Column("lease_id", ForeignKey("leases.id"), primary_key=True),
    Column("ordinal", Integer, primary_key=True),
    Column("device_id", ForeignKey("devices.id"), nullable=False, index=True),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("weight", Float, nullable=False),
    Column("worker", String, nullable=False),  # starting, ready, gone
    Column("endpoints", String, nullable=False, default=""),  # separated by spaces
    Column("memory_used_bytes", BigInteger, nullable=False, default=0),
    Column("memory_peak_bytes", BigInteger, nullable=False, default=0),
    Column("cuda_calls", BigInteger, nullable=False, default=0),
    Column("launches", BigInteger, nullable=False, default=0),
    Column("gpu_seconds", Float, nullable=False, default=0.0),
    Column("connections", Integer, nullable=False, default=0),
    Column("idle_seconds", Float, nullable=False, default=0.0),
    CheckConstraint("worker IN ('starting', 'ready', 'gone')", name="known_worker"),
)
