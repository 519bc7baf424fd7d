"""The agent of one GPU server: it finds devices, keeps workers and slices in direct mode, and serves the pool.

* `agent.Agent` has the stream to the pool and obeys its orders
* `inventory` finds the devices, `health` checks them
* `workers`, with `worker_log` and `container_sockets`: the workers of remote mode
* `direct_slices` and `direct_slice`: slices in direct mode; `process_watch`, `processes` and `termination`: who uses the devices
* `holders`, with `keys`: the names in log lines

The command line alone imports from here, `agent` and `inventory`.
"""
