"""Slices for jobs of Slurm that ask for ``--gres=shard:N``: Slurm chooses the GPU, and the pool gives the job its part of it.

* ``gpukernel/native/slurm_hook`` is Slurm's Prolog, TaskProlog and Epilog: it puts a job down in a folder and tells the node's daemon.
* `node` is that daemon; `holding` holds the lease of one job, `allocation` reads from Slurm what was allocated, `calls` answers programs
  that need their slice, `folder` has the files, `recipe` the variables.
"""
