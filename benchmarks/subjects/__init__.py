"""Programs that the benchmarks measure, each in a process of its own; only `benchmarks` starts them."""
