"""The pool's gRPC services, one file each, the server that runs them, metrics, and the notifications of peer pools."""
