"""The pool's service: devices, leases and the queue, in rooms that import one way.

``rpc → policy → leases → scheduling → store → domain``, and ``auth → store``; all of them import `gpukernel.common`.  Only
`gpukernel.pool.rpc.server` is imported from outside, by what starts a pool; clients use `gpukernel.client`.
"""
