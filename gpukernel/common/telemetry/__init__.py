"""Telemetry: what the processes of a pool tell an administrator's collector, where one is named; nothing is loaded else."""
