"""The kubelet's gRPC interfaces, as far as gpukernel speaks them; the ``*_pb2`` modules are generated when gpukernel is built.

The ``.proto`` files state names, field numbers and types of Kubernetes' public interfaces (the module ``k8s.io/kubelet``, Apache License
2.0, © The Kubernetes Authors): what two programs must agree on to talk.  Their comments are gpukernel's own.
"""
