"""A teaching day of 100,000 students on 10,000 GPUs, in virtual time, on the pool's own code (`docs/scale.md`)."""
