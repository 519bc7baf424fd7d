"""Slices for jobs of Slurm that ask for ``--gres=shard:N``: Slurm chooses the GPU, and the pool gives the job its part of it.

* ``cli_filter.lua``, with the variables of `recipe`, gives jobs the way to their slice when they are submitted: nothing runs at their start.
* `node` is the daemon of a node; `holding` holds the lease of one job, `allocation` reads from Slurm what was allocated, `calls` answers
  programs that need their slice, `folder` has the files.
* ``gpukernel/native/slurm_hook`` is Slurm's Epilog: it tells the daemon, and waits until the slice is free.
"""
