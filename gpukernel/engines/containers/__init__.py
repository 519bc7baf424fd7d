"""Slices for containers of any image, by the Container Device Interface (CDI).

* `specification` writes what a runtime reads: which libraries it mounts, which variables it sets, which hooks it calls.
* `hook` is what the runtime calls, a script without imports of this package: it starts the keeper of a container and waits for its word.
* `keeper` holds the container's lease for as long as the container's first process lives.
* `bundle` reads what the runtime says of a container, and `image` whether the image can load the libraries.
"""
