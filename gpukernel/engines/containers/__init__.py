"""Slices for containers of any image, by the Container Device Interface (CDI).

* `specification` writes what a runtime reads: which libraries it mounts, which variables it sets, which hooks it calls.
* ``gpukernel/native/oci_hook`` is the hook: it looks whether the image can load the libraries, and starts the keeper of the container.
* `keeper` holds the container's lease for as long as the container's first process lives; by `asking` programs of the container ask for it.
* `bundle` reads what the runtime says of a container.
"""
