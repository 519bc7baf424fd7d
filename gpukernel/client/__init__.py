"""The clients of a pool.

`pool.PoolClient` has everybody's calls, `hub.HubClient` those of JupyterHub and of people who choose a size, and
`admin.AdminClient` all of them, with those of `teaching` and `reservations`; `keepalive` keeps a process's leases alive.

The command line, `gpukernel.jupyter` and `hub_spawner` import the clients from here; they import `gpukernel.common` alone.
"""
