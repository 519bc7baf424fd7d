"""The shards and the GPU that Slurm allocated to jobs of one node, from ``scontrol show job --details`` and ``squeue``."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = [
    "JobShards",
    "NotUnderstood",
    "RunningJob",
    "cluster_name",
    "parse_allocation",
    "parse_running",
    "shards_of_a_gpu",
]

_GRES = re.compile(r"shard(?::[^:(,]+)?:(\d+)(?:\(([^)]*)\))?")
_SHARE = re.compile(r"(\d+)/\d+")
_NODES = re.compile(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")


class NotUnderstood(Exception):
    """An error: Slurm's words do not say on which GPU a job's shards are; the text is a sentence."""


@dataclass(frozen=True)
class JobShards:
    """The shards of one job on one node; `gpu` is the number of their GPU there, counted from 0 as in ``gres.conf``."""

    shards: int
    gpu: int
    account: str = ""


@dataclass(frozen=True)
class RunningJob:
    """A job that Slurm has on a node; `restarts` counts how often it was put back into the queue."""

    id: str
    state: str
    restarts: int = 0


def _hosts(text: str) -> set[str]:
    """Return the names of a list such as ``n[1-3,7],m2``."""
    found = set[str]()
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)?", text):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
        if match is None:
            found.add(part)
            continue
        for piece in match[2].split(","):
            first, _, last = piece.partition("-")
            numbers = range(int(first), int(last or first) + 1)
            found |= {f"{match[1]}{number:0{len(first)}d}{match[3]}" for number in numbers}
    return found


def parse_allocation(said: str, node: str) -> JobShards | None:
    """Return the shards of the job that ``scontrol show job --details --oneliner`` describes; None where it has none on `node`.

    Raises
    ------
    NotUnderstood
        They are on several GPUs, or it is not said on which.
    """
    for nodes, gres in _NODES.findall(said):
        if node not in _hosts(nodes):
            continue
        found = _GRES.findall(gres)
        if not found:
            return None
        if len(found) > 1:
            raise NotUnderstood(f"Slurm gave shards of several kinds to one job ({gres[:80]}); ask for one.")
        shards = int(found[0][0])
        account = re.search(r"\bAccount=(\S+)", said)
        name = account[1] if account and account[1] != "(null)" else ""
        return JobShards(shards, _gpu(shards, found[0][1], gres), name)
    return None


def _gpu(shards: int, where: str, gres: str) -> int:
    """Return the one GPU in ``IDX:1``, or of the kind ``0/100,2/100``: how many of each GPU."""
    if match := re.fullmatch(r"IDX:(\d+)", where):
        return int(match[1])
    parts = [_SHARE.fullmatch(part) for part in where.split(",")]
    counts = [int(part[1]) for part in parts if part is not None]
    if len(counts) == len(parts) and sum(counts) == shards and counts.count(0) == len(counts) - 1:
        return counts.index(shards)
    raise NotUnderstood(
        f"Slurm does not say on which one GPU the job's shards are ({gres[:80]}); a job gets them on one GPU of a node, so no "
        "MULTIPLE_SHARING_GRES_PJ in slurm.conf, and a File= for each in gres.conf."
    )


def shards_of_a_gpu(said: str) -> int:
    """Return how many shards a GPU of the node has that ``scontrol show node --oneliner`` describes.

    Raises
    ------
    NotUnderstood
        It has none, or its GPUs have different numbers of them.
    """
    match = re.search(r"\bGres=(\S+)", said)
    gres = re.sub(r"\([^)]*\)", "", match[1]) if match else ""
    counts = {"gpu": 0, "shard": 0}
    for part in gres.split(","):
        words = part.split(":")
        if words[0] in counts and words[-1].isdigit():
            counts[words[0]] += int(words[-1])
    if not counts["gpu"] or not counts["shard"] or counts["shard"] % counts["gpu"]:
        raise NotUnderstood(
            f"Slurm's node has Gres={gres[:80] or 'nothing'}; it needs the same number of shards for each GPU, such as Gres=gpu:4,shard:400."
        )
    return counts["shard"] // counts["gpu"]


def parse_running(said: str) -> list[RunningJob]:
    """Return the jobs of ``squeue --noheader --Format=JobID:20|,State:20|,RestartCnt:10|``.

    Raises
    ------
    NotUnderstood
        A line is none of these.
    """
    found = []
    for line in said.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) < 3 or not fields[0].isdigit():
            raise NotUnderstood(f"squeue answered “{line.strip()[:80]}”.")
        found.append(RunningJob(fields[0], fields[1], int(fields[2]) if fields[2].isdigit() else 0))
    return found


def cluster_name(said: str) -> str:
    """Return the name of the cluster that ``scontrol show config`` describes; empty where it says none."""
    match = re.search(r"^ClusterName\s*=\s*(\S+)", said, re.MULTILINE)
    return match[1] if match else ""
