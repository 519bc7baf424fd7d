"""The commands for engines that start programs themselves: ``cdi`` for container runtimes, and for those that place: ``lease`` and
``server delegate``.
"""
