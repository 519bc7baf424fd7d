"""The pool's tables.  That nothing is promised twice is a constraint of the database itself; shares are whole millionths of a device.

Every change of a table is a migration in ``migrations/versions``; a test compares what they make with what stands here.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Cast,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    and_,
    cast,
    func,
    literal,
    or_,
    text,
)

__all__ = [
    "ENDING",
    "IN_USE",
    "LIVE",
    "LIVING",
    "NOT_ENDED",
    "NOT_ENDING",
    "PLACED_BY_POOL",
    "STARTING",
    "audit",
    "changes",
    "clock",
    "courses",
    "devices",
    "groups",
    "leases",
    "ledger",
    "members",
    "metadata",
    "pools",
    "quota_usage",
    "quotas",
    "requests",
    "reservation_placements",
    "reservations",
    "servers",
    "slices",
    "tokens",
    "total",
    "usage_log",
]

metadata = MetaData()


def _living(name: str, *columns: str, condition: str, unique: bool = False) -> Index:
    """Return an index over rows that matter now, so that what is over costs nothing."""
    where = text(condition)
    return Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)


def total(column: Column[int]) -> Cast[int]:
    """Return the sum of `column`, a whole number on every database: PostgreSQL's own sum of them is a decimal one."""
    return cast(func.sum(column), BigInteger)


# One row.  Whoever changes what is promised holds it locked, so that pools decide one after the other.
ledger = Table(
    "ledger",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),  # grows with every grant
    Column("ticket", BigInteger, nullable=False),  # grows with every request that has to wait
    # What grows whenever its tables change, so that a pool may keep in memory what it has read.
    Column("queue_version", BigInteger, nullable=False),
    Column("devices_version", BigInteger, nullable=False),
    Column("policy_version", BigInteger, nullable=False),
    Column("term_begins", Float, nullable=False, server_default="0"),
    Column("timezone", String, nullable=False, server_default=""),  # of reservations; empty: the pool's own
    Column("half_life", Float, nullable=False, server_default="604800"),  # of fair share, in seconds
    Column("notice", Float, nullable=False, server_default="60"),  # that leases have which give way
    Column("least_run", Float, nullable=False, server_default="600"),  # before they may have to
    CheckConstraint("id = 1", name="one_ledger"),
)

# The change log: what a transaction changed that the other pools on the database follow.  Only the newest entries are kept.
changes = Table(
    "changes",
    metadata,
    # without gaps, in the order of commits
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("pool", String, nullable=False),  # the process that made them
    Column("what", String, nullable=False),  # JSON: `gpukernel.pool.store.changes`
)

# Pool processes, and when each was last alive: it speaks for its agents' servers, and for the requests whose calls it holds.
pools = Table(
    "pools",
    metadata,
    Column("id", String, primary_key=True),
    Column("seen", Float, nullable=False),
    Column("address", String, nullable=False, server_default=""),  # at which it is reached over TLS
)

# One row: the steady time, by which leases expire, and where the machine's clocks stood when it was written down.
clock = Table(
    "clock",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("steady", Float, nullable=False),
    Column("wall", Float, nullable=False),
    Column("boot", String, nullable=False),  # the start of the machine on which `since_boot` was read
    Column("since_boot", Float, nullable=False),
    CheckConstraint("id = 1", name="one_clock"),
)

# GPU servers: the pool that their agents speak with, until when their workers may live, drains.
servers = Table(
    "servers",
    metadata,
    Column("name", String, primary_key=True),
    Column("pool", String, nullable=False, server_default=""),  # the process that its agent speaks with
    Column("away_since", Float, nullable=True),
    Column("quiet", Boolean, nullable=False, server_default=text("false")),  # nothing was heard for seconds
    Column("draining", Boolean, nullable=False, server_default=text("false")),  # it gets no new leases
    Column("drain_until", Float, nullable=True),  # those that it has end then at the latest
    Column("direct_machine", String, nullable=False, server_default=""),  # where direct mode is allowed there
    Column("confinement", String, nullable=False, server_default="[]"),  # rungs, as its agent says, in JSON
    # Who may speak for it, since an agent did for the first time: “token ID”, “account UID” or “agent.token PROOF”; and from which machine.
    Column("credential", String, nullable=False, server_default=""),
    Column("machine", String, nullable=False, server_default=""),
    Column("place", String, nullable=False, server_default=""),  # where its workers live
    Column("instance", String, nullable=False, server_default=""),  # the process that speaks for it
    Column("epoch", BigInteger, nullable=False, server_default="0"),  # grows with every other such process
    # A heartbeat, in steady time: the last one of a server that is away; of others its pool knows later ones.
    Column("heard", Float, nullable=False, server_default="0"),
    Column("fenced_until", Float, nullable=False, server_default="1e18"),  # its workers may live until then
    Column("settling", Boolean, nullable=False, server_default=text("false")),  # unordered workers live
    Column("forgotten", Boolean, nullable=False, server_default=text("false")),
    _living("one_server_a_token", "credential", condition="substr(credential, 1, 6) = 'token '", unique=True),
)

# The devices of GPU servers, with the memory that is promised on each.
devices = Table(
    "devices",
    metadata,
    # its server with its UUID, or with its number where that is not told
    Column("id", String, primary_key=True),
    Column("uuid", String, nullable=False, server_default="", index=True),
    Column("server", String, nullable=False, index=True),
    Column("index", Integer, nullable=False),
    Column("name", String, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("promised_bytes", BigInteger, nullable=False, default=0),
    Column("compute_capability", String, nullable=False, default=""),
    Column("multiprocessors", Integer, nullable=False, default=0),
    # The pool may promise it: it decides over it, its agent is attached, nobody drains its server, and it works.
    Column("available", Boolean, nullable=False, server_default=text("false")),
    Column("fault", String, nullable=False, server_default=""),  # what its agent says is wrong with it
    Column("decided_by", String, nullable=False, server_default="pool"),  # who chooses it for leases
    Column("next_decider", String, nullable=False, server_default=""),  # who does once no lease is left there
    CheckConstraint("decided_by IN ('pool', 'kubernetes', 'slurm')", name="known_decider"),
    CheckConstraint("next_decider IN ('', 'pool', 'kubernetes', 'slurm')", name="known_next_decider"),
    # Whatever the pool's code looks for among available devices, it finds none that an engine decides over.
    CheckConstraint(
        "NOT available OR (decided_by = 'pool' AND next_decider = '')", name="the_pools_to_offer"
    ),
    Index("one_decider_a_device", "id", "decided_by", unique=True),
    CheckConstraint("promised_bytes >= 0 AND promised_bytes <= memory_bytes", name="never_promised_twice"),
    # Numbers move from one device to another; at any time a number means one that may be promised.
    _living("one_device_a_number", "server", "index", condition="available", unique=True),
    # Best fit is one step in this index, however many devices there are.
    Index("devices_by_room", "name", "memory_bytes", "available", "promised_bytes", "id"),
    _living("devices_to_hand_over", "id", condition="next_decider <> ''"),
)

# Who holds slices until when, and why it ended; `secret` opens the lease's workers.
leases = Table(
    "leases",
    metadata,
    Column("id", String, primary_key=True),
    Column("key", String, nullable=False),
    Column("person", String, nullable=False),
    Column("server", String, nullable=False),
    Column("course", String, nullable=False),
    Column("role", String, nullable=False, server_default=""),
    Column("description", String, nullable=False),
    Column("secret", String, nullable=False),
    Column("state", String, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("created", Float, nullable=False),
    Column("expires", Float, nullable=False),
    Column("ttl_seconds", Float, nullable=False),
    Column("until", Float, nullable=True),  # it ends then, whoever renews it
    Column("span", Float, nullable=True),  # its longest time, which ends then
    Column("idle_limit", Float, nullable=False, server_default="0"),
    Column("notice", String, nullable=False, server_default=""),  # what the pool has to say to its holder
    Column("message", String, nullable=False, server_default=""),  # what an instructor has
    Column("share", BigInteger, nullable=False, server_default="0"),  # of all its slices together
    Column("memory_bytes", BigInteger, nullable=False, server_default="0"),
    Column("ended", Float, nullable=False, default=0.0),
    Column("end_reason", String, nullable=False, default=""),
    Column("resize_refusal", String, nullable=False, server_default=""),  # of the last resize
    Column("mode", String, nullable=False, server_default="remote"),  # or "direct"
    Column("uid", BigInteger, nullable=False, server_default="0"),  # in direct mode: whose programs
    Column("decided_by", String, nullable=False, server_default="pool"),  # who chose its devices
    Column("caller", String, nullable=False, server_default=""),  # the pool that was asked for it last
    # its memory is lent to leases inside
    Column("ceiling", Boolean, nullable=False, server_default=text("false")),
    Column("within", String, nullable=False, server_default=""),  # the ceiling that it is inside of
    Column("priority", String, nullable=False, server_default="interactive"),  # empty: an engine's
    Column("gives_way", Float, nullable=True),  # its end by this, in steady time
    Column("gives_way_to", String, nullable=False, server_default=""),  # the key of the request
    Column("gives_way_for", String, nullable=False, server_default=""),  # and its person
    CheckConstraint("state IN ('starting', 'live', 'ending', 'ended')", name="known_state"),
    CheckConstraint("decided_by IN ('pool', 'kubernetes', 'slurm')", name="known_decider"),
    CheckConstraint("priority IN ('', 'interactive', 'batch', 'scavenger')", name="known_priority"),
    # One key, one living lease: asking twice cannot give two.  Keys of the pool and of each engine are apart.
    _living(
        "one_living_lease_a_key",
        "decided_by",
        "key",
        condition="state <> 'ended' AND state <> 'ending'",
        unique=True,
    ),
    _living("leases_by_expiry", "expires", condition="state <> 'ended'"),
    _living("leases_by_end", "until", condition="state <> 'ended' AND until IS NOT NULL"),
    _living("leases_by_idleness", "idle_limit", condition="state = 'live' AND idle_limit > 0"),
    _living("leases_by_ceiling", "within", condition="state <> 'ended' AND within <> ''"),
    _living("leases_giving_way", "gives_way", condition="state <> 'ended' AND gives_way IS NOT NULL"),
    _living("leases_given_up", "gives_way_for", "gives_way", condition="gives_way IS NOT NULL"),
    _living("leases_by_class", "priority", "epoch", condition="state = 'live' AND gives_way IS NULL"),
    Index("leases_by_epoch", "epoch"),
)

# A lease's part of one device, with its worker and what that counted.
slices = Table(
    "slices",
    metadata,
    Column("lease_id", ForeignKey("leases.id"), primary_key=True),
    Column("ordinal", Integer, primary_key=True),
    Column("device_id", ForeignKey("devices.id"), nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),  # promised
    Column("wanted_bytes", BigInteger, nullable=True),  # it is being resized to this
    Column("limit_bytes", BigInteger, nullable=False, server_default="0"),  # the cap that its worker has
    Column("weight", Float, nullable=False),
    Column("worker", String, nullable=False),  # starting, ready, gone
    Column("endpoints", String, nullable=False, default=""),  # separated by spaces
    Column("memory_used_bytes", BigInteger, nullable=False, default=0),
    Column("memory_peak_bytes", BigInteger, nullable=False, default=0),
    Column("cuda_calls", BigInteger, nullable=False, default=0),
    Column("launches", BigInteger, nullable=False, default=0),
    Column("gpu_seconds", Float, nullable=False, default=0.0),
    Column("connections", Integer, nullable=False, default=0),
    Column("idle_seconds", Float, nullable=False, default=0.0),  # as reported last
    Column("idle_since", Float, nullable=True),  # in steady time; empty while it is not idle, or of before
    Column("confirmed", Boolean, nullable=False, server_default=text("true")),  # it is ordered to start
    # Its worker is out of reach of whoever speaks for the server now, and may live until then.
    Column("fenced_until", Float, nullable=True),
    # Who decides over the device, as long as the worker may live: a device goes to nobody else before.
    Column("decided_by", String, nullable=True, server_default="pool"),
    # of a ceiling: promised for leases inside
    Column("reserve_bytes", BigInteger, nullable=False, server_default="0"),
    Column("lent_bytes", BigInteger, nullable=False, server_default="0"),  # what these have of it
    Column("lent_by", String, nullable=True),  # the ceiling whose memory this is
    CheckConstraint("lent_bytes >= 0 AND lent_bytes <= reserve_bytes", name="lent_within_reserve"),
    CheckConstraint("worker IN ('starting', 'ready', 'gone')", name="known_worker"),
    CheckConstraint("worker = 'gone' OR decided_by IS NOT NULL", name="decided_while_in_use"),
    ForeignKeyConstraint(
        ["device_id", "decided_by"], ["devices.id", "devices.decided_by"], name="one_decider_a_device"
    ),
    _living("slices_in_use", "device_id", "lease_id", condition="worker <> 'gone'"),
    _living("slices_fenced", "fenced_until", condition="fenced_until IS NOT NULL"),
)

# States for conditions, written out as in the indices over what is not over: for parameters SQLite would have to plan anew each time.
NOT_ENDED = leases.c.state != literal("ended", literal_execute=True)
STARTING, LIVE, ENDING = (
    leases.c.state == literal(state, literal_execute=True) for state in ("starting", "live", "ending")
)
LIVING = and_(NOT_ENDED, or_(STARTING, LIVE))
NOT_ENDING = and_(NOT_ENDED, leases.c.state != literal("ending", literal_execute=True))
PLACED_BY_POOL = leases.c.decided_by == literal("pool", literal_execute=True)
IN_USE = slices.c.worker != literal("gone", literal_execute=True)

# What a lease held from when until when: a row for every size that it had.
usage_log = Table(
    "usage_log",
    metadata,
    Column("lease_id", ForeignKey("leases.id"), primary_key=True),
    Column("begins", Float, primary_key=True),
    Column("ends", Float, nullable=True),
    Column("share", BigInteger, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Index("usage_log_by_end", "ends"),
)

# --- who may hold what ---

# Courses: a weight for the queue, and the profile that their people see.
courses = Table(
    "courses",
    metadata,
    Column("name", String, primary_key=True),
    Column("title", String, nullable=False, server_default=""),
    Column("weight", Float, nullable=False, server_default="1"),
    Column("profile", String, nullable=False, server_default=""),  # JSON: `gpukernel.common.course`
    CheckConstraint("weight > 0", name="some_weight"),
)

# Who is a student or an instructor of a course.
members = Table(
    "members",
    metadata,
    Column("course", ForeignKey("courses.name", ondelete="CASCADE"), primary_key=True),
    Column("person", String, primary_key=True),  # "*": everybody
    Column("role", String, nullable=False),
    CheckConstraint("role IN ('student', 'instructor')", name="known_role"),
)

# Capacity that a course owns at certain hours.
reservations = Table(
    "reservations",
    metadata,
    Column("id", String, primary_key=True),
    Column("course", ForeignKey("courses.name"), nullable=False),
    Column("days", String, nullable=False),  # numbers of weekdays without anything between them; Monday is 0
    Column("on_day", String, nullable=False),  # or one day, as 2026-12-01
    Column("begins", Integer, nullable=False),  # minutes after midnight
    Column("ends", Integer, nullable=False),
    Column("devices", Float, nullable=False),
    Column("model", String, nullable=False),
    Column("preempt", Boolean, nullable=False),
    CheckConstraint("begins >= 0 AND begins < ends AND ends <= 1440", name="ends_after_it_begins"),
    CheckConstraint("devices > 0", name="some_capacity"),
)

# On which devices a reservation has its room, until the window closes that they were chosen for.
reservation_placements = Table(
    "reservation_placements",
    metadata,
    Column("reservation", ForeignKey("reservations.id", ondelete="CASCADE"), primary_key=True),
    Column("device", String, primary_key=True),  # one that went has no row any more
    Column("bytes", BigInteger, nullable=False),
    Column("until", Float, nullable=False),
)

# What JupyterHub last said of the people who use it.
groups = Table(
    "groups",
    metadata,
    Column("person", String, primary_key=True),
    Column("name", String, primary_key=True),
)

# The bounds of one subject; NULL leaves that figure to the other levels.
quotas = Table(
    "quotas",
    metadata,
    Column("kind", String, primary_key=True),
    Column("course", String, primary_key=True),
    Column("person", String, primary_key=True),  # of kind person; "*": whoever has no row
    Column("devices", Float, nullable=True),
    Column("memory_mib", BigInteger, nullable=True),
    Column("leases", Integer, nullable=True),
    Column("hours_day", Float, nullable=True),
    Column("hours_week", Float, nullable=True),
    Column("hours_term", Float, nullable=True),
    Column("longest_seconds", Float, nullable=True),
    Column("largest_slice", Float, nullable=True),
    Column("idle_seconds", Float, nullable=True),
    Column("waiting", Integer, nullable=True),
    Column("interactive", Float, nullable=True),
    CheckConstraint("kind IN ('pool', 'course', 'student', 'instructor', 'person')", name="known_kind"),
)

# The running totals of everyone whom a quota can bound.  A ceiling is the quota, or what is held where the quota was
# lowered below that: so a quota changes at once, and the database still refuses whatever would go above it.
quota_usage = Table(
    "quota_usage",
    metadata,
    Column("kind", String, primary_key=True),  # pool, course, member (a person in a course), person
    Column("course", String, primary_key=True),
    Column("person", String, primary_key=True),
    Column("share_held", BigInteger, nullable=False, server_default="0"),
    Column("memory_held", BigInteger, nullable=False, server_default="0"),
    Column("leases_held", BigInteger, nullable=False, server_default="0"),
    Column("share_ceiling", BigInteger, nullable=True),
    Column("memory_ceiling", BigInteger, nullable=True),
    Column("leases_ceiling", BigInteger, nullable=True),
    Column("interactive_held", BigInteger, nullable=False, server_default="0"),  # share of interactive leases
    Column("interactive_ceiling", BigInteger, nullable=True),
    # Share × time in device-seconds: up to `settled`; each in the period that it began in.
    Column("settled", Float, nullable=False, server_default="0"),
    Column("spent_day", Float, nullable=False, server_default="0"),
    Column("spent_week", Float, nullable=False, server_default="0"),
    Column("spent_term", Float, nullable=False, server_default="0"),
    # The mean share held before `settled`, in which what was held a half-life earlier counts half.
    Column("recent", Float, nullable=False, server_default="0"),
    CheckConstraint(
        "share_held >= 0 AND (share_ceiling IS NULL OR share_held <= share_ceiling)",
        name="share_within_quota",
    ),
    CheckConstraint(
        "memory_held >= 0 AND (memory_ceiling IS NULL OR memory_held <= memory_ceiling)",
        name="memory_within_quota",
    ),
    CheckConstraint(
        "leases_held >= 0 AND (leases_ceiling IS NULL OR leases_held <= leases_ceiling)",
        name="leases_within_quota",
    ),
    CheckConstraint(
        "interactive_held >= 0 AND (interactive_ceiling IS NULL OR interactive_held <= interactive_ceiling)",
        name="interactive_within_quota",
    ),
)

# --- who waits ---

# Requests that wait, each with its ticket; what is granted or given up is deleted.
requests = Table(
    "requests",
    metadata,
    Column("key", String, primary_key=True),
    Column("ticket", BigInteger, nullable=False, unique=True),
    Column("person", String, nullable=False),
    Column("server", String, nullable=False),
    Column("course", String, nullable=False),
    Column("role", String, nullable=False),
    Column("description", String, nullable=False),
    Column("share", Float, nullable=True),
    Column("memory_bytes", BigInteger, nullable=True),
    Column("devices", Integer, nullable=False),
    Column("model", String, nullable=False),
    Column("on_server", String, nullable=False, server_default=""),
    Column("on_device", String, nullable=False, server_default=""),  # its label, or the beginning of UUIDs
    Column("mode", String, nullable=False, server_default="remote"),  # or "direct", "auto"
    Column("machine", String, nullable=False, server_default=""),  # that the program runs on
    Column("uid", BigInteger, nullable=False, server_default="0"),  # the account there that runs it
    Column("ttl_seconds", Float, nullable=False),
    Column("longest_seconds", Float, nullable=False, server_default="0"),
    Column("size", BigInteger, nullable=False),  # millionths of a device
    Column("since", Float, nullable=False),
    Column("pool", String, nullable=False),  # the process that holds the call; empty: nobody does
    Column("seen", Float, nullable=False),  # in steady time; its pool has been seen later
    Column("priority", String, nullable=False, server_default="interactive"),
    # JSON: the devices on which leases give way to it, or did; and from when on, in steady time.
    Column("claims", String, nullable=False, server_default=""),
    Column("claims_from", Float, nullable=False, server_default="0"),
)

# --- who may speak, and what was changed ---

# Tokens: a hash, for whom, with which scope, until when.
tokens = Table(
    "tokens",
    metadata,
    Column("id", String, primary_key=True),
    Column("hash", String, nullable=False),
    Column("name", String, nullable=False),
    Column("person", String, nullable=False),
    Column("scope", String, nullable=False),
    Column("created", Float, nullable=False),
    Column("expires", Float, nullable=True),
    Column("revoked", Float, nullable=True),
    Column("course", String, nullable=False, server_default=""),  # for which alone its holder asks, and
    Column("server", String, nullable=False, server_default=""),  # as this server of the person
    Column("certificate_expires", Float, nullable=True),  # of the client certificate made for it
    Column("renewed", Float, nullable=True),  # it is valid for as long after it as it was made for
    Column("inside", Boolean, nullable=False, server_default=text("false")),  # it leases inside of ceilings
    Column("announced", String, nullable=False, server_default=""),  # what its supplies bring, in JSON
    Column("made_with", String, nullable=False, server_default=""),  # another token, by its id
    _living("tokens_made", "made_with", condition="made_with <> ''"),
    _living("tokens_of_supplies", "id", condition="announced <> ''"),
    _living("tokens_of_servers", "person", "created", condition="server <> ''"),
    _living("open_servers", "person", "server", condition="server <> '' AND revoked IS NULL"),
)

# What administrators and instructors changed, with the values before and after.
audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("time", Float, nullable=False, index=True),
    Column("who", String, nullable=False),
    Column("action", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("before", String, nullable=False),
    Column("after", String, nullable=False),
)
