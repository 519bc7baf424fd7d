"""``python -m hub_spawner.console``: the command that the Hub starts."""

from hub_spawner.console.application import main

main()
