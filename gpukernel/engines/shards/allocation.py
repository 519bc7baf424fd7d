"""The shards and the GPU that Slurm allocated to a job of one node, from ``scontrol show``."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["JobShards", "NotUnderstood", "no_shards", "parse_allocation", "shards_of_a_gpu"]

_GRES = re.compile(r"shard(?::[^:(,]+)?:(\d+)(?:\(([^)]*)\))?")
_SHARE = re.compile(r"(\d+)/\d+")
_NODES = re.compile(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_START = re.compile(r"\bStartTime=(\S*)")  # with SLURM_TIME_FORMAT=%s
HALF_A_SECOND = 0.5
"""Slurm says the whole second in which a job began; in the mean it began half a second later."""
_BEHIND_NAME, _BEFORE_COMMENT = " UserId=", " MinCPUsNode="
_MIXED = "What Slurm says of job {} cannot be told from the job's own words; give it a name and a comment without line breaks and “Word=”."


class NotUnderstood(Exception):
    """An error: Slurm's words do not say on which GPU a job's shards are; the text is a sentence."""


@dataclass(frozen=True)
class JobShards:
    """The shards of one job on one node.

    Attributes
    ----------
    gpu
        The number of their GPU there, counted from 0 as in ``gres.conf``.
    began
        When Slurm started the job, in seconds since the epoch; 0 where it does not say.
    """

    shards: int
    gpu: int
    account: str = ""
    began: float = 0.0


def no_shards(job: str, node: str) -> str:
    """Return the sentence for a program of a job that has none on its node, though its environment asks for a slice."""
    return f"Job {job} has no shards on {node}; a job with --exclusive has whole GPUs in their place, so leave that out."


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


def parse_allocation(said: str, node: str, job: str) -> JobShards | None:
    """Return the shards of a job by ``scontrol show job --details --oneliner``; None where it has none on `node`.

    Slurm shows the other tasks of an array as well, and prints what people may choose, such as the name of a job, as it is: nothing is taken
    from there.

    Raises
    ------
    NotUnderstood
        They are on several GPUs, or it is not said on which, or the job's own words look like Slurm's.
    """
    own = _own_words_of_slurm(said, job)
    there = [gres for nodes, gres in _NODES.findall(own) if node in _hosts(nodes)]
    if len(there) > 1:
        raise NotUnderstood(_MIXED.format(job))
    found = _GRES.findall(there[0]) if there else []
    if not found:
        return None
    if len(found) > 1:
        raise NotUnderstood(f"Slurm gave shards of several kinds to one job ({there[0][:80]}); ask for one.")
    shards = int(found[0][0])
    account = re.search(r"\bAccount=(\S+)", own)
    name = account[1] if account and account[1] != "(null)" else ""
    starts = _START.findall(own)
    if len(starts) > 1:
        raise NotUnderstood(_MIXED.format(job))
    began = int(starts[0]) + HALF_A_SECOND if starts and starts[0].isdigit() else 0.0
    return JobShards(shards, _gpu(shards, found[0][1], there[0]), name, began)


def _own_words_of_slurm(said: str, job: str) -> str:
    """Return what Slurm says of a job behind its name and before its script, folder and comment."""
    records = [line for line in said.split("\n") if line.startswith(f"JobId={job} ")]
    if len(records) != 1 or any(records[0].count(one) != 1 for one in (_BEHIND_NAME, _BEFORE_COMMENT)):
        raise NotUnderstood(_MIXED.format(job))
    return records[0].partition(_BEHIND_NAME)[2].partition(_BEFORE_COMMENT)[0]


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
