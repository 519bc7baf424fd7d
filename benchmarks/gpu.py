"""All that there is to try on a machine with a real NVIDIA GPU, in one run: ``make gpu`` writes docs/benchmarks-gpu.md.

Runs ``tests/gpu`` first, then the calls, copies and training step of `benchmarks.data_path` in process, in direct mode and in
remote mode, ResNet-110 with PyTorch where it is installed: alone on the device, on slices of several sizes, and on four at once; and
networks of PyTorch, Keras and JAX in remote mode.
``GPUKERNEL_TEST_GPU=simulated`` tries the script itself on a simulated GPU and writes no page.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.interleaving import interleaved, median, subject
from benchmarks.pool import only
from benchmarks.report import Table, gigabytes_per_second, microseconds, ratio
from gpukernel import native
from gpukernel.agent.inventory import NoDevices, real, simulated
from gpukernel.client.pool import PoolClient, resolve_address
from gpukernel.common.machine import machine_identity
from gpukernel.common.model import Holder, SliceRequest
from gpukernel.embedded import EmbeddedPool
from gpukernel.remoting.environment import program_environment

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks-gpu.md"
SIMULATED = "h100:1" if os.environ.get("GPUKERNEL_TEST_GPU") == "simulated" else ""
SHARE = 0.1
FIGURES = (
    "launch",
    "launch_and_synchronize",
    "synchronous_call",
    "attribute",
    "host_to_device",
    "device_to_host",
    "training_step",
)
ROUNDS = 15
PROGRAM_SECONDS = 120
NETWORK = ((1.0, 1), (0.1, 1), (0.02, 1), (0.1, 4))  # share of the device, slices at once


REMOTE_SHARE = 0.5
REMOTE_PROGRAMS = (
    (
        "torch",
        "PyTorch, ResNet-18, batches of 64 of 224 × 224",
        "resnet",
        ("--network", "resnet18", "--batch", "64"),
    ),
    ("torch", "PyTorch, ResNet-110, batches of 128 of 32 × 32", "resnet", ()),
    ("tensorflow", "Keras, ResNet-20, batches of 128 of 32 × 32", "keras_resnet", ()),
    ("jax", "JAX, ResNet-18, batches of 64 of 224 × 224", "jax_resnet", ()),
)
"""Package, title, module of `benchmarks.subjects` and its words."""

SUITES = (
    (
        "programs and frameworks in remote mode, confined workers",
        ("-n", "4", "tests/gpu", "--ignore=tests/gpu/test_direct.py", "--ignore=tests/gpu/test_mps.py"),
        "",
    ),
    ("direct mode, MPS", ("tests/gpu/test_direct.py", "tests/gpu/test_mps.py"), ""),
    ("what kernels of single instructions give", ("-n", "4", "tests/native/simgpu_exec"), "real"),
    ("calls of the driver through shim and worker", ("-n", "6", "tests/remoting"), "real"),
    ("math libraries", ("-n", "3", "--dist", "loadfile", "tests/native/libraries"), "real"),
)
"""Title, words of pytest, and the device (`tests.real_gpu`)."""


def alone() -> dict[str, str]:
    """Return the environment of a program on the whole device, without gpukernel."""
    if not SIMULATED:
        return dict(os.environ)
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(native.simgpu_library().parent),
        "GPUKERNEL_SIMGPU": SIMULATED,
    }


@contextlib.asynccontextmanager
async def slices(
    pool: EmbeddedPool, count: int, mode: str, transport: str = "", share: float = SHARE
) -> AsyncIterator[list[dict[str, str]]]:
    """Yield the environments of programs on `count` slices of `share`; `transport` leaves only endpoints of that kind."""
    request = SliceRequest(
        share=share, mode=mode, machine=machine_identity() if mode == "direct" else "", user=os.getuid()
    )
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(PoolClient(resolve_address(None, pool.state)))
        found = []
        for number in range(count):
            key = f"{mode} {transport} {share:g} {number}"
            lease = await client.acquire_now(key, request, Holder("benchmark"))
            stack.push_async_callback(client.release, lease.id)
            await stack.enter_async_context(client.keep_alive(lease))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            found.append(program_environment(folder / "lease", only(lease, transport), os.environ))
        yield found


async def figures(program: str, environment: Mapping[str, str], *words: str) -> dict[str, float]:
    """Return the JSON that ``python -m benchmarks.subjects.PROGRAM`` prints."""
    command = [sys.executable, "-m", f"benchmarks.subjects.{program}", *words]
    process = await asyncio.create_subprocess_exec(
        *command, env=dict(environment), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        said, errors = await asyncio.wait_for(process.communicate(), PROGRAM_SECONDS)
    except TimeoutError:
        process.kill()
        raise RuntimeError(f"{' '.join(command)} did not end within {PROGRAM_SECONDS} s") from None
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {said.decode()}{errors.decode()}")
    return dict(json.loads(said.decode().splitlines()[-1]))


def calls_of(environment: Mapping[str, str]) -> dict[str, float]:
    """Return the figures of `benchmarks.subjects.driver_calls`: medians of several rounds."""
    with subject("driver_calls", environment) as one:
        return {
            figure: median(interleaved({figure: partial(one.measure, figure)}, ROUNDS), figure)
            for figure in FIGURES
        }


async def calls(pool: EmbeddedPool) -> list[Table]:
    """Return a table with a column for each way to the device."""
    measured = {"in process": await asyncio.to_thread(calls_of, alone())}
    for name, mode, transport, shared in (
        ("direct", "direct", "", "1"),
        ("shared memory", "remote", "unix", "1"),
        ("unix socket", "remote", "unix", "0"),
        ("TCP", "remote", "tcp", "0"),
    ):
        async with slices(pool, 1, mode, transport) as [environment]:
            environment["GPUKERNEL_SHARED_MEMORY"] = shared
            measured[name] = await asyncio.to_thread(calls_of, environment)
    table = Table("Calls, copies and a training step", ["figure", *measured])
    for key, title in (
        ("launch", "a launch"),
        ("launch_and_synchronize", "a launch and a wait for it"),
        ("synchronous_call", "a synchronous call"),
        ("attribute", "a cached attribute"),
    ):
        table.rows.append([title, *(microseconds(one[key]) for one in measured.values())])
    for key, title in (
        ("host_to_device", "256 MiB host → device"),
        ("device_to_host", "256 MiB device → host"),
    ):
        table.rows.append([title, *(gigabytes_per_second(one[key]) for one in measured.values())])
    steps = [one["training_step"] for one in measured.values()]
    table.rows.append(["a training step of 300 calls", *(f"{one * 1e3:.2f} ms" for one in steps)])
    table.rows.append(["÷ in process", *(ratio(one, steps[0]) for one in steps)])
    return [table]


async def network(pool: EmbeddedPool) -> list[Table]:
    """Return a table of ResNet-110 beside the same program without gpukernel."""
    if SIMULATED or find_spec("torch") is None:
        return []
    table = Table("ResNet-110, batches of 128", ["program", "images/s", "÷ alone on the device"])
    whole = (await figures("resnet", alone()))["images_per_second"]
    table.rows.append(["alone on the device", f"{whole:.0f}", "1.00"])
    for share, count in NETWORK:
        async with slices(pool, count, "direct", share=share) as environments:
            rates = await asyncio.gather(*(figures("resnet", one) for one in environments))
            total = sum(one["images_per_second"] for one in rates)
            what = f"{count} slices of {share:g} at once, together" if count > 1 else f"a slice of {share:g}"
            table.rows.append([f"direct mode, {what}", f"{total:.0f}", ratio(total, whole)])
    return [table]


async def frameworks(pool: EmbeddedPool) -> list[Table]:
    """Return a table of frameworks' networks in remote mode beside the same programs without gpukernel."""
    table = Table(
        "Frameworks in remote mode",
        ["program", "alone on the device", "shared memory", "÷ alone", "TCP", "÷ alone"],
        notes=f"Images a second on a slice of {REMOTE_SHARE:g}; the aim is 0.9 of the program alone.",
    )
    for package, title, program, words in REMOTE_PROGRAMS:
        if SIMULATED or find_spec(package) is None:
            continue
        try:
            rates = [(await figures(program, alone(), *words))["images_per_second"]]
            for transport in ("unix", "tcp"):
                async with slices(pool, 1, "remote", transport, REMOTE_SHARE) as [environment]:
                    rates.append((await figures(program, environment, *words))["images_per_second"])
        except RuntimeError as error:  # the other programs' figures are worth having all the same
            print(error, file=sys.stderr)
            table.rows.append([f"{title}: failed", "–", "–", "–", "–", "–"])
            continue
        whole, memory, tcp = rates
        table.rows.append(
            [title, f"{whole:.0f}", f"{memory:.0f}", ratio(memory, whole), f"{tcp:.0f}", ratio(tcp, whole)]
        )
    return [table] if table.rows else []


def tests() -> Table:
    """Return what the suites that run on a real device found: how many tests passed, and the names of those that failed."""
    table = Table("Tests", ["suite", "passed", "skipped", "failed"])
    failed = []
    for title, words, device in SUITES:
        command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", *words]
        environment = {**os.environ, "GPUKERNEL_TEST_GPU": "simulated" if SIMULATED else device}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        print(done.stdout, file=sys.stderr)
        counts = dict.fromkeys(("passed", "skipped", "failed", "error"), 0)
        for number, what in re.findall(r"(\d+) (passed|skipped|failed|error)", done.stdout[-400:]):
            counts[what] = int(number)
        counts["failed"] += counts.pop("error")
        table.rows.append([title, *map(str, counts.values())])
        failed += [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR "))]
        if done.returncode > 1:  # as where a plugin is missing
            print(done.stderr, file=sys.stderr)
            failed.append(f"{title}: pytest ended with {done.returncode}")
    table.notes = " ".join(f"`{line.split(' - ')[0]}`." for line in failed)
    return table


def main() -> None:
    try:
        inventory = simulated(SIMULATED) if SIMULATED else real()
    except NoDevices as error:
        raise SystemExit(f"make gpu needs an NVIDIA GPU: {error}") from None
    tables = [] if "--no-tests" in sys.argv[1:] else [tests()]

    async def measure() -> None:
        with EmbeddedPool(SIMULATED, tcp_host="127.0.0.1", options=("--direct",)) as pool:
            for part in (calls, network, frameworks):
                print(f"{part.__name__} …", file=sys.stderr, flush=True)
                try:
                    found = await part(pool)
                except RuntimeError as error:  # the other parts' figures are worth having all the same
                    found = [Table(part.__name__, ["failed"], [[" ".join(str(error).split())[-600:]]])]
                for table in found:
                    print(table.markdown(), file=sys.stderr, flush=True)
                tables.extend(found)

    asyncio.run(measure())
    device = inventory.devices[0]
    text = (
        f"# Benchmarks on a GPU\n\nMade by `make gpu` on {datetime.date.today().isoformat()}: {device.name}, "
        f"{device.memory_bytes >> 30} GiB, compute capability {device.compute_capability}, {os.cpu_count()} cores.\n\n"
        + "\n".join(table.markdown() for table in tables)
    )
    print(text)
    if not SIMULATED:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
