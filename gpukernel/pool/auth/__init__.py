"""Authentication: tokens, Hub tokens, TLS and the peer credentials of unix sockets.  Imported by `gpukernel.pool.rpc`."""
