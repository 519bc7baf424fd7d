"""Changes of the policy while the pool runs, and their effects.  Imported by `rpc`; the course file is read in `gpukernel.common`."""
