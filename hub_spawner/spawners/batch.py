"""Slurm, by batchspawner: the server is a job of the cluster.

Its kernels lease slices from the pool, or, where the job asks for ``shard``, run inside the slice that the job has got from Slurm.

Guarantees
----------
* A job runs once.  One that Slurm puts back into its queue, or suspends, is ended: whoever had it open would find it empty, or not at
  all, and what it held would wait with it.
* Its person reads in a sentence what a start waits for, why it was refused, and why a server ended that nobody stopped.
* Nothing secret is in a job's script or command line.
* A server's token tells the Hub a port, and changes nothing else of the spawner.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any

from batchspawner import SlurmSpawner
from batchspawner.batchspawner import JobStatus, format_template
from traitlets import Dict, Unicode, default

from hub_spawner.spawner import GPUSpawnerMixin, refused
from hub_spawner.spawners.batch_port import take_ports_only
from hub_spawner.spawners.slurm_words import (
    FORMAT,
    ServerJob,
    parse_job,
    refusal_of,
    why_ended,
    why_waiting,
)

__all__ = ["GPUSlurmSpawner"]

take_ports_only()  # also where somebody uses this class without `configure`

LOOK_SECONDS = 5.0
"""Seconds for which one look at a job that waits serves everybody who watches it."""

STANDING = ("SUSPENDED", "STOPPED")
"""States of a job whose processes are there and stand still; batchspawner takes them for the end."""

_ONCE = """if [ -n "${SLURM_RESTART_COUNT:-}" ]; then
    echo "Slurm has put this job back into its queue; a server does not start twice." >&2
    exit 1
fi
"""

_SCRIPT = """#!/bin/bash
#SBATCH --job-name=jupyterhub
#SBATCH --output={{homedir}}/jupyterhub_slurmspawner_%j.log
#SBATCH --chdir={{homedir}}
#SBATCH --export={{keepvars}}
#SBATCH --get-user-env=L
#SBATCH --no-requeue
{% if cluster %}#SBATCH --clusters={{cluster}}{% endif %}
{% if partition %}#SBATCH --partition={{partition}}{% endif %}
{% if account %}#SBATCH --account={{account}}{% endif %}
{% if qos %}#SBATCH --qos={{qos}}{% endif %}
{% if reservation %}#SBATCH --reservation={{reservation}}{% endif %}
{% if runtime %}#SBATCH --time={{runtime}}{% endif %}
{% if nprocs %}#SBATCH --cpus-per-task={{nprocs}}{% endif %}
{% if memory %}#SBATCH --mem={{memory}}{% endif %}
{% if gres %}#SBATCH --gres={{gres}}{% endif %}
{% if options %}#SBATCH {{options}}{% endif %}

trap : TERM  # The server hears it, too; the epilogue comes after it.
set -euo pipefail
{{prologue}}
export SLURM_EXPORT_ENV=ALL  # What the prologue has set, and a slice's variables, reach the server.
status=0
{{srun}} {{cmd}} || status=$?
{{epilogue}}
exit $status
"""


class GPUSlurmSpawner(GPUSpawnerMixin, SlurmSpawner):  # type: ignore[misc]
    """A Slurm job for each server.

    What an environment changes is any of batchspawner's settings, such as ``{"req_partition": "cpu", "req_memory": "8G"}``.  One with
    ``{"req_gres": "shard:10"}`` starts servers whose ordinary kernels run in the job's own slice; they get no way into the pool.
    For others the pool has to be reached over TCP from the nodes: set `pool_for_servers`.
    """

    accounts = Dict(
        key_trait=Unicode(),
        value_trait=Unicode(),
        help="""The Slurm account of each course, for its servers' jobs, as in ``{"ml101": "ml101"}``; `req_account` goes before it.
        Servers of other courses have the default account of their person.""",
    ).tag(config=True)
    batch_look_cmd = Unicode(
        f"squeue --noheader --states=all --jobs={{job_id}} --Format='{FORMAT}'",
        help="The command that says what a job waits for or how it ended, in these columns.",
    ).tag(config=True)

    _ran = ""  # the job that has run: it must not wait again
    _stopped: ServerJob | None = None  # which was ended, since Slurm has put it back or suspended it
    _job = ""  # the last one, also when batchspawner has forgotten it
    _looked: tuple[float, str, ServerJob | None] = (0.0, "", None)

    @default("batch_script")
    def _script(self) -> str:
        return _SCRIPT

    @property
    def has_own_slice(self) -> bool:
        """Return whether the job itself gets a slice, from Slurm."""
        return bool(re.search(r"(?:^|,)\s*(?:gres[/:])?shard(?:[:=]|,|$)", self.req_gres))

    def leases_from_pool(self) -> bool:
        """Return whether the server's kernels ask the pool for slices."""
        return not self.has_own_slice

    def get_req_subvars(self) -> dict[str, Any]:
        """Return batchspawner's variables, with ours kept: its own list is made once, before the course is known."""
        variables: dict[str, Any] = super().get_req_subvars()
        kept = [name for name in str(variables.get("keepvars", "")).split(",") if name]
        ours = [name for name in self.gpu_environment() if name not in kept]
        account = self.req_account or self.accounts.get(self._course, "")
        prologue = _ONCE + self.req_prologue
        return {
            **variables,
            "keepvars": ",".join([*kept, *ours]),
            "account": account,
            "prologue": prologue,
        }

    # --- the life of a job ---

    async def start(self) -> Any:
        """Submit the job and return its address; an error's sentence is for its person."""
        self._ran = self._job = ""
        self._stopped = None
        patience = max(self.start_timeout - 5.0, self.start_timeout * 0.8)
        try:
            async with asyncio.timeout(patience):
                address = await super().start()
        except TimeoutError:
            job = await self._look(self._job)
            why = why_waiting(job) if job else f"Slurm says nothing of its job {self._job}."
            raise refused(503, "slurm_queue", f"{why} That took more than {patience:.0f} s.") from None
        except RuntimeError as error:
            if not self._job:
                raise
            why = why_ended(await self._look(self._job), self._job) or "it ended at once"
            raise refused(500, "slurm_ended", f"Your server did not start: {why}.") from error
        self._ran = self.job_id
        return address

    async def submit_batch_script(self) -> Any:
        """Submit the job; what Slurm says no with is the sentence for its person."""
        try:
            self._job = await super().submit_batch_script()
        except RuntimeError as error:
            sentence = f"Slurm refused your server: {refusal_of(str(error))}."
            raise refused(403, "slurm_refused", sentence) from None
        return self._job

    async def query_job_status(self) -> JobStatus:
        """Ask for the job's state; one that ran and waits again, or is suspended, is ended, and not found any more."""
        status = await super().query_job_status()
        stands = status is JobStatus.NOTFOUND and str(self.job_status).startswith(STANDING)
        if self.job_id and (stands or (status is JobStatus.PENDING and self.job_id == self._ran)):
            self._stopped = ServerJob(self.job_id, "SUSPENDED" if stands else "REQUEUED")
            try:
                await self.cancel_batch_job()
            except RuntimeError as error:
                self.log.warning("%s: job %s could not be cancelled: %s", self._log_name, self.job_id, error)
                return JobStatus.UNKNOWN
            return JobStatus.NOTFOUND
        return status

    async def poll(self) -> Any:
        """Poll the job, whose number batchspawner forgets when it is over."""
        self._job = self.job_id or self._job
        return await super().poll()

    async def why_ended(self) -> str:
        """Return why the job is over, as Slurm tells it."""
        if not self._job:
            return ""
        if self._stopped is not None and self._stopped.id == self._job:
            return why_ended(self._stopped, self._job)
        return why_ended(await self._look(self._job), self._job)

    async def _look(self, job: str) -> ServerJob | None:
        """Look at a job, also one that is over; None where Slurm does not know or does not say."""
        if not job:
            return None
        variables = {**self.get_req_subvars(), "job_id": job}
        words = (self.exec_prefix, self.batch_look_cmd)
        command = " ".join(format_template(one, **variables) for one in words)
        try:
            return parse_job(job, await self.run_command(command))
        except RuntimeError as error:
            self.log.warning("%s: Slurm does not show job %s: %s", self._log_name, job, error)
            return None

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Tell whoever waits for the server what it waits for."""
        if self.gpu_ending:
            yield {"message": f"Your last server ended: {self.gpu_ending}."}
        said = ""
        while True:
            job = await self._look_now_and_then()
            sentence = why_waiting(job) if job else ""
            if sentence and sentence != said:
                yield {"message": sentence}
            said = sentence
            await asyncio.sleep(1)

    async def _look_now_and_then(self) -> ServerJob | None:
        when, number, job = self._looked
        if number != self._job or time.monotonic() - when >= LOOK_SECONDS:
            job = await self._look(self._job)
            self._looked = (time.monotonic(), self._job, job)
        return job

    # --- what a Hub that is started again knows ---

    def get_state(self) -> dict[str, Any]:
        """Return batchspawner's state, and which job has run."""
        state: dict[str, Any] = super().get_state()
        return state | ({"ran": self._ran} if self._ran else {})

    def load_state(self, state: dict[str, Any]) -> None:
        """Load what `get_state` returned."""
        super().load_state(state)
        self._ran = str(state.get("ran", ""))

    def clear_state(self) -> None:
        """Forget the job."""
        super().clear_state()
        self._ran = ""
