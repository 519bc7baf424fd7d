"""The Python side of the data path: starting workers, and the environment of a program under the shim."""
