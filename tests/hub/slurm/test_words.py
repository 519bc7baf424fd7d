"""The sentences about a server's Slurm job that its person reads."""

from __future__ import annotations

import pytest

from hub_spawner.spawners.slurm_words import ServerJob, parse_job, refusal_of, why_ended, why_waiting


@pytest.mark.parametrize(
    ("said", "job"),
    [
        (
            "PENDING   |Priority   |8:00:00   |0   |0   |\n",
            ServerJob("7", "PENDING", "Priority", "8:00:00"),
        ),
        ("FAILED|NonZeroExitCode|1:00|0|256|", ServerJob("7", "FAILED", "NonZeroExitCode", "1:00", 0, 1)),
        ("CANCELLED|None|UNLIMITED|1|15|", ServerJob("7", "CANCELLED", "", "UNLIMITED", 1, 15)),
        (
            "COMPLETED|None|1:00|0|0|2026-11-26T06:31:02|",
            ServerJob("7", "COMPLETED", "", "1:00", preempted=True),
        ),
        ("RUNNING|None|1:00|0|0|N/A|", ServerJob("7", "RUNNING", "", "1:00")),
        ("", None),
        ("slurm_load_jobs error: Invalid job id specified", None),
    ],
)
def test_a_job_is_read_from_squeue(said: str, job: ServerJob | None) -> None:
    assert parse_job("7", said) == job


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("Priority", "jobs before it in the queue have a higher priority (Priority)."),
        ("(QOSMaxGRESPerUser)", "with it a limit would be exceeded (QOSMaxGRESPerUser)."),
        ("AssocGrpGRES", "with it your account's limit would be exceeded (AssocGrpGRES)."),
        ("SomethingNew", "Your server waits in Slurm's queue (job 7: SomethingNew)."),
        ("", "Your server waits in Slurm's queue (job 7)."),
    ],
)
def test_whoever_waits_reads_the_reason(reason: str, sentence: str) -> None:
    assert sentence in why_waiting(ServerJob("7", "PENDING", reason))


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        (ServerJob("7", "TIMEOUT", limit="8:00:00"), "has reached its time limit (8:00:00)"),
        (ServerJob("7", "PREEMPTED"), "had to make way for a job of higher priority"),
        (ServerJob("7", "COMPLETED", preempted=True), "had to make way for a job of higher priority"),
        (
            ServerJob("7", "FAILED", status=143, preempted=True),
            "had to make way for a job of higher priority",
        ),
        (ServerJob("7", "SUSPENDED"), "was suspended, and so ended"),
        (ServerJob("7", "NODE_FAIL"), "lost its node, which failed"),
        (ServerJob("7", "FAILED", status=3), "ended with status 3; its output is in your home directory"),
        (ServerJob("7", "FAILED", restarts=1, status=1), "Slurm put its job 7 back into the queue"),
        (None, "Slurm's job 7, in which it ran, is gone"),
    ],
)
def test_whoever_lost_a_server_reads_why(job: ServerJob | None, sentence: str) -> None:
    assert sentence in why_ended(job, "7")


def test_a_server_that_ended_in_order_needs_no_word() -> None:
    assert why_ended(ServerJob("7", "COMPLETED"), "7") == ""


def test_a_refusal_is_what_sbatch_says_no_with() -> None:
    said = (
        "sbatch: warning: something\nsbatch: error: Batch job submission failed: Invalid qos specification\n"
    )
    assert refusal_of(said) == "Invalid qos specification"
    assert refusal_of("") == "it gave no reason"
