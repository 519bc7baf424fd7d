"""Commands about the queue's decisions.  Imported by `gpukernel.cli.showing`."""
