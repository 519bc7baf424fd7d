"""The seams to engines that start programs themselves: container runtimes, Kubernetes, Slurm."""
