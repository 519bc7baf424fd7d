"""The doors: what stands between the network and the services: connections, bounds of messages, rates of calls, and the I/O thread.

Imported by `rpc`; imports `gpukernel.common` alone.
"""
