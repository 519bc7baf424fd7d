"""``python -m gpukernel.cli``: the command, where its script is not on the path."""

from gpukernel.cli import main

main()
