"""Databases as older versions of gpukernel left them."""

from __future__ import annotations

from pathlib import Path

import alembic.command
import alembic.config
import sqlalchemy as sa

from gpukernel.pool.store import migrations

# What gpukernel 0.1 made with `metadata.create_all`, without a word about its version.
OLD = """
CREATE TABLE devices (id VARCHAR NOT NULL, server VARCHAR NOT NULL, "index" INTEGER NOT NULL, name VARCHAR NOT NULL,
  memory_bytes BIGINT NOT NULL, promised_bytes BIGINT NOT NULL, compute_capability VARCHAR NOT NULL, multiprocessors INTEGER NOT NULL,
  PRIMARY KEY (id), CONSTRAINT never_promised_twice CHECK (promised_bytes >= 0 AND promised_bytes <= memory_bytes));
CREATE INDEX ix_devices_server ON devices (server);
CREATE TABLE leases (id VARCHAR NOT NULL, "key" VARCHAR NOT NULL, person VARCHAR NOT NULL, server VARCHAR NOT NULL,
  course VARCHAR NOT NULL, description VARCHAR NOT NULL, secret VARCHAR NOT NULL, state VARCHAR NOT NULL, epoch BIGINT NOT NULL,
  created FLOAT NOT NULL, expires FLOAT NOT NULL, ttl_seconds FLOAT NOT NULL, ended FLOAT NOT NULL, end_reason VARCHAR NOT NULL,
  PRIMARY KEY (id), CONSTRAINT known_state CHECK (state IN ('starting', 'live', 'ending', 'ended')));
CREATE UNIQUE INDEX one_living_lease_a_key ON leases ("key") WHERE state <> 'ended';
CREATE TABLE slices (lease_id VARCHAR NOT NULL, ordinal INTEGER NOT NULL, device_id VARCHAR NOT NULL, memory_bytes BIGINT NOT NULL,
  weight FLOAT NOT NULL, worker VARCHAR NOT NULL, endpoints VARCHAR NOT NULL, memory_used_bytes BIGINT NOT NULL,
  memory_peak_bytes BIGINT NOT NULL, cuda_calls BIGINT NOT NULL, launches BIGINT NOT NULL, gpu_seconds FLOAT NOT NULL,
  connections INTEGER NOT NULL, idle_seconds FLOAT NOT NULL, PRIMARY KEY (lease_id, ordinal),
  CONSTRAINT known_worker CHECK (worker IN ('starting', 'ready', 'gone')),
  FOREIGN KEY(lease_id) REFERENCES leases (id), FOREIGN KEY(device_id) REFERENCES devices (id));
CREATE INDEX ix_slices_device_id ON slices (device_id);
INSERT INTO devices VALUES ('s/0', 's', 0, 'Tesla V100', 34359738368, 17179869184, '7.0', 80);
INSERT INTO leases VALUES ('one', 'k', 'anna', 'host', 'ml101', '', 'ff', 'live', 7, 1000.0, 1020.0, 20.0, 0.0, '');
INSERT INTO leases VALUES ('old', 'j', 'ben', 'host', '', '', 'ee', 'ended', 6, 900.0, 920.0, 20.0, 930.0, 'released');
INSERT INTO slices VALUES ('one', 0, 's/0', 17179869184, 0.5, 'ready', 'unix:/x', 0, 0, 0, 0, 0.0, 0, 0.0);
INSERT INTO slices VALUES ('old', 0, 's/0', 17179869184, 0.5, 'gone', 'direct:/x', 0, 0, 0, 0, 0.0, 0, 0.0);
"""

# What gpukernel 0.1 last wrote under names that 0012 changes.
PREVIOUS = """
INSERT INTO servers (name, pool) VALUES ('s', 'p');
INSERT INTO devices (id, server, "index", name, memory_bytes, promised_bytes, compute_capability, multiprocessors, available)
  VALUES ('s/0', 's', 0, 'Tesla V100', 34359738368, 17179869184, '7.0', 80, true);
INSERT INTO courses (name) VALUES ('ml101');
INSERT INTO leases (id, "key", person, server, course, description, secret, state, epoch, created, expires, ttl_seconds, share,
  memory_bytes, ended, end_reason)
  VALUES ('one', 'k', 'anna', 'host', 'ml101', '', 'ff', 'live', 7, 1000.0, 1020.0, 20.0, 500000, 17179869184, 0.0, '');
INSERT INTO slices (lease_id, ordinal, device_id, memory_bytes, weight, worker, endpoints, memory_used_bytes, memory_peak_bytes,
  cuda_calls, launches, gpu_seconds, connections, idle_seconds)
  VALUES ('one', 0, 's/0', 17179869184, 0.5, 'ready', 'unix:/x', 0, 0, 0, 0, 0.0, 0, 0.0);
INSERT INTO spans (lease_id, begins, ends, share, memory_bytes) VALUES ('one', 1000.0, NULL, 500000, 17179869184);
INSERT INTO accounts (kind, course, person, share_held, memory_held, leases_held, settled, spent_day)
  VALUES ('pool', '', '', 500000, 17179869184, 1, 1000.0, 42.0);
INSERT INTO accounts (kind, course, person, share_held, memory_held, leases_held, settled)
  VALUES ('course', 'ml101', '', 500000, 17179869184, 1, 1000.0);
INSERT INTO accounts (kind, course, person, share_held, memory_held, leases_held, settled)
  VALUES ('member', 'ml101', 'anna', 500000, 17179869184, 1, 1000.0);
INSERT INTO accounts (kind, course, person, share_held, memory_held, leases_held, settled)
  VALUES ('person', '', 'anna', 500000, 17179869184, 1, 1000.0);
INSERT INTO reservations VALUES ('r1', 'ml101', '01234', '', 540, 600, 1.0, 'V100', false);
INSERT INTO pins VALUES ('r1', 's/0', 34359738368, 5000.0);
INSERT INTO requests (key, ticket, person, server, course, role, description, share, memory_bytes, devices, model, ttl_seconds,
  size, since, pool, seen) VALUES ('w', 3, 'ben', '', 'ml101', 'student', '', 0.5, NULL, 1, '', 20.0, 500000, 900.0, 'p', 1000.0);
UPDATE ledger SET epoch = 7, ticket = 3, line_version = 11, devices_version = 12, rules_version = 13
"""


def plain_engine(url: str) -> sa.Engine:
    """An engine that migrates nothing."""
    return sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))


def make_old(url: str) -> None:
    """Make what the first gpukernel left: two leases, one of them ended."""
    engine = plain_engine(url)
    with engine.begin() as db:
        _execute(db, OLD)
    engine.dispose()


def make_previous(url: str) -> None:
    """Make what gpukernel 0.1 left at last, with rows in every table that 0012 renames or changes."""
    config = alembic.config.Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    engine = plain_engine(url)
    if engine.dialect.name == "sqlite":
        with engine.connect() as db:
            db.exec_driver_sql("PRAGMA journal_mode=WAL")
    with engine.begin() as db:
        config.attributes["connection"] = db
        alembic.command.upgrade(config, "0011_indices")
        _execute(db, PREVIOUS)
    engine.dispose()


def _execute(db: sa.Connection, script: str) -> None:
    for statement in script.split(";\n"):
        if statement.strip():
            db.exec_driver_sql(statement)
