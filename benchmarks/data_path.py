"""The cost of the shim: driver calls in process, over a unix socket and over TCP, beside the bare sockets."""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.interleaving import (
    Rounds,
    Subject,
    compiled_subject,
    interleaved,
    median,
    median_ratio,
    placed,
    subject,
)
from benchmarks.pool import leased, workers
from benchmarks.report import Table, gigabytes_per_second, microseconds
from gpukernel import native

SHARE = 0.05
IN_PROCESS, SHARED = "in process", "shared memory"
PLAIN, ENCRYPTED = "TCP", "TCP with TLS"
TRANSPORTS = {  # name → (kind of bare socket, shared memory)
    SHARED: ("unix", "1"),
    "unix socket": ("unix", "0"),
    PLAIN: ("tcp", "0"),
    ENCRYPTED: ("tcp", "0"),
}
KINDS = ("unix", "tcp")
ROUNDS, LONG_ROUNDS = 41, 11  # of calls; of copies
COPIES_IN_A_ROW = 3


async def measure() -> list[Table]:
    alone = {
        **os.environ,
        "LD_LIBRARY_PATH": str(native.simgpu_library().parent),
        "GPUKERNEL_SIMGPU": "v100:1",
    }
    async with contextlib.AsyncExitStack() as stack:
        ways = {IN_PROCESS: stack.enter_context(subject("driver_calls", alone))}
        others: dict[str, set[int]] = {}  # the processes at the other end, by way or kind of socket
        for name, (kind, shared) in TRANSPORTS.items():  # each a pool and a device of its own
            before = workers()
            transport = "tls" if name == ENCRYPTED else kind
            environment = await stack.enter_async_context(leased(SHARE, transport=transport))
            environment["GPUKERNEL_SHARED_MEMORY"] = shared
            others[name] = workers() - before
            ways[name] = stack.enter_context(subject("driver_calls", environment))
        memory = stack.enter_context(compiled_subject("shared_memory"))
        bare = {name: partial(memory.measure, name) for name in ("exchange", "two_copies", "memcpy")}
        ends = dict(ways)
        for kind in KINDS:
            ends[kind] = sockets = stack.enter_context(subject("sockets", None, kind))
            bare |= {
                f"{name} {kind}": partial(sockets.measure, name) for name in ("ping_pong", "stream", "copy")
            }
        return [_calls(ways, bare), _placed(ends, others), _copies(ways, bare), _training(ways)]


Bare = Mapping[str, Callable[[], float]]
"""The machine's own costs, by figure and, for a socket's, its kind."""


def _rounds(
    ways: Mapping[str, Subject], figure: str, rounds: int, bare: Bare, *baselines: str, in_a_row: int = 1
) -> Rounds:
    """Return the rounds of `figure` by each way, and those of `baselines`, the sockets of each kind."""
    each = {name: partial(one.measure, figure) for name, one in ways.items()}
    return interleaved(
        each | {name: one for name, one in bare.items() if name.partition(" ")[0] in baselines},
        rounds,
        in_a_row,
    )


def _ratios(rounds: Rounds, baseline: str) -> list[str]:
    return [
        f"{median_ratio(rounds, name, f'{baseline} {kind}'):.2f}" for name, (kind, _) in TRANSPORTS.items()
    ]


def _calls(ways: Mapping[str, Subject], bare: Bare) -> Table:
    empty = median(interleaved({"": partial(ways[IN_PROCESS].measure, "empty_ctypes_call")}, ROUNDS), "")
    table = Table(
        "Calls through the shim",
        ["figure", *ways, "aim"],
        notes=(
            "Launch and attribute: the caller's cost of one call from Python's ctypes, whose own cost is in every column "
            f"(an empty call takes {microseconds(empty)} in process). "
            "A synchronous call copies four bytes to the host. Bare ping-pong: 64 bytes there and back between two processes, "
            "over a unix socket for the columns of shared memory and the unix socket; through shared memory, between processes that do not "
            "sleep. All columns are measured interleaved, in "
            f"{ROUNDS} rounds; a figure is the median of the rounds, and so is a ratio or a difference, each round's from its own two figures."
        ),
    )
    for key, name, aim in (
        ("launch", "a launch", "≤ 1 µs"),
        ("launch_and_synchronize", "a launch and a wait for it", ""),
        ("attribute", "a cached attribute", "≤ 0.2 µs"),
    ):
        rounds = _rounds(ways, key, ROUNDS, bare)
        table.rows.append([name, *(microseconds(median(rounds, way)) for way in ways), ""])
        if aim:
            above = (statistics.median(one[way] - one[IN_PROCESS] for one in rounds) for way in TRANSPORTS)
            table.rows.append([f"{name}, above in process", "", *(microseconds(one) for one in above), aim])
    rounds = _rounds(ways, "synchronous_call", ROUNDS, bare, "ping_pong", "exchange")
    table.rows.append(["a synchronous call", *(microseconds(median(rounds, way)) for way in ways), ""])
    pings = (microseconds(median(rounds, f"ping_pong {kind}")) for kind, _ in TRANSPORTS.values())
    table.rows.append(["bare ping-pong", "", *pings, ""])
    table.rows.append(
        [
            "synchronous call ÷ ping-pong",
            "",
            *_ratios(rounds, "ping_pong"),
            "≤ 0.3 shared memory, ≤ 1.3 sockets",
        ]
    )
    table.rows.append(
        ["bare exchange through shared memory", "", microseconds(median(rounds, "exchange")), "", "", "", ""]
    )
    above = statistics.median(one[ENCRYPTED] - one[PLAIN] for one in rounds)
    table.rows.append(["a synchronous call, above TCP", "", "", "", "", microseconds(above), "≤ 3 µs"])
    return table


def _placed(ends: Mapping[str, Subject], others: Mapping[str, set[int]]) -> Table:
    """Return a synchronous call and a ping-pong, both ends on one processor, and each on its own."""
    processors = sorted(os.sched_getaffinity(0))[:2]
    table = Table(
        "A synchronous call by where its two processes run",
        ["figure", *TRANSPORTS, "aim"],
        notes=(
            "The same as above with the processes held where they are: the program and its worker, or the two processes of the ping-pong. On one processor "
            f"nobody can answer before the processor has changed hands, whatever carries the words. Interleaved, in {ROUNDS} rounds."
        ),
    )

    def held(name: str, figure: str, there: int) -> float:
        here, end = processors[0], ends[name]
        far = others.get(name) or end.processes - {end.pid}
        with placed({end.pid: here} | dict.fromkeys(far, there)):
            return end.measure(figure)

    for where, there in (("on two processors", processors[-1]), ("on one processor", processors[0])):
        if where == "on two processors" and len(processors) < 2:
            continue
        calls = {name: partial(held, name, "synchronous_call", there) for name in TRANSPORTS}
        pings = {f"ping_pong {kind}": partial(held, kind, "ping_pong", there) for kind in KINDS}
        rounds = interleaved(calls | pings, ROUNDS)
        table.rows.append(
            [f"{where}: a synchronous call", *(microseconds(median(rounds, name)) for name in calls), ""]
        )
        table.rows.append(
            [
                f"{where}: bare ping-pong",
                *(microseconds(median(rounds, f"ping_pong {kind}")) for kind, _ in TRANSPORTS.values()),
                "",
            ]
        )
        table.rows.append(
            [f"{where}: ÷", *_ratios(rounds, "ping_pong"), "≤ 0.3 shared memory, ≤ 1.3 sockets"]
        )
    return table


def _copies(ways: Mapping[str, Subject], bare: Bare) -> Table:
    table = Table(
        "Copies of 256 MiB",
        ["direction", *ways, "aim"],
        notes=(
            "Bare stream: the same MiB again and again, from and into the processor's cache. Bare copy: from one buffer of 256 MiB into another "
            "over the same socket, as these copies have to. Over TCP the bare sockets use Reno, as gpukernel does on loopback. Two bare copies: one process copies 256 MiB into 1 MiB of shared memory and "
            "another out of it at the same time. Memcpy: one core, one copy. "
            f"Interleaved, in {LONG_ROUNDS} rounds; in each, everything {COPIES_IN_A_ROW} times in a row, of which the median counts: the first finds "
            "its processes asleep, and its buffers pushed out of the caches by the others' copies."
        ),
    )
    baselines = ("stream", "copy")
    for key, title in (("host_to_device", "host → device"), ("device_to_host", "device → host")):
        rounds = _rounds(
            ways, key, LONG_ROUNDS, bare, *baselines, "two_copies", "memcpy", in_a_row=COPIES_IN_A_ROW
        )
        table.rows.append([title, *(gigabytes_per_second(median(rounds, way)) for way in ways), ""])
        for baseline in baselines:
            table.rows.append([f"{title} ÷ bare {baseline}", "", *_ratios(rounds, baseline), "≥ 0.85"])
        ratio = median_ratio(rounds, SHARED, "two_copies")
        table.rows.append([f"{title} ÷ two bare copies", "", f"{ratio:.2f}", "", "", "", ""])
        ratio = median_ratio(rounds, ENCRYPTED, PLAIN)
        table.rows.append([f"{title} ÷ TCP", "", "", "", "", f"{ratio:.2f}", "≥ 0.6"])
    for baseline in baselines:
        speeds = (
            gigabytes_per_second(median(rounds, f"{baseline} {kind}")) for kind, _ in TRANSPORTS.values()
        )
        table.rows.append([f"bare {baseline}", "", *speeds, ""])
    for baseline, title in (("two_copies", "two bare copies"), ("memcpy", "memcpy")):
        table.rows.append([title, "", gigabytes_per_second(median(rounds, baseline)), "", "", "", ""])
    return table


def _training(ways: Mapping[str, Subject]) -> Table:
    rounds = _rounds(ways, "training_step", ROUNDS, {})
    return Table(
        "A training step",
        ["figure", *ways, "aim"],
        [
            ["300 calls, 4 places that wait", *(f"{median(rounds, way) * 1e3:.1f} ms" for way in ways), ""],
            [
                "÷ in process",
                "",
                *(f"{median_ratio(rounds, way, IN_PROCESS):.2f}" for way in TRANSPORTS),
                "≤ 1.15",
            ],
        ],
        notes=f"Interleaved, in {ROUNDS} rounds.",
    )
