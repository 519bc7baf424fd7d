from gpukernel.cli import main

main()
