"""The Python side of the data path: workers, their usage, and the environment of programs on slices.

* `worker` starts, adopts and asks workers; `direct_table` is what it makes for a slice in direct mode: the agent's business
* `lease_file`, `environment` and `direct_environment`: what a program needs to find its slice
* `worker_query` asks for the `usage` of a slice from a program's side; `wire` has the protocol's numbers

The agent, the command line and `gpukernel.jupyter` import from here; it imports `gpukernel.common` and `gpukernel.native` alone.
"""
