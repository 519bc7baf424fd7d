from hub_spawner.console.application import main

main()
