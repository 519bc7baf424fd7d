"""The commands for engines that start programs themselves: ``cdi`` for container runtimes."""
