"""Slices for pods, by Kubernetes' Dynamic Resource Allocation (DRA, ``resource.k8s.io/v1``): the driver ``gpukernel.io``.

* `names`, `quantities`, `allocations` say how Kubernetes' objects and the pool's name the same things.
* `slices` makes ResourceSlices of the pool's devices, and `publisher` keeps them in the API; `classes` writes DeviceClasses.
* `reflector` follows objects of the API; `work_queue` says which are to be looked at again.
* `controller` keeps one lease of the pool for each allocated claim, and `claim_status` tells how it is.
* `claim_files` writes what a container runtime reads, `preparing` does so for a claim, and `kubelet` is asked for it;
  `device_plugin` with its `slots` is the same for clusters before 1.34.

Leases are the pool's, claims are the API's, and this package keeps nothing of its own: each of its processes may be killed at any moment.
"""
