"""Slurm: GPU servers that run as jobs, more when people wait and fewer when slices are idle."""
