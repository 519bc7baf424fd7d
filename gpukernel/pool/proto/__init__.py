"""The control path's messages, generated from ``pool.proto`` when the package is built."""
