"""The usual spawners with GPUs; a module each, since each needs a package of its own."""
