"""Pure decisions of the pool: quota, placement, fairness and direct mode.  No clock, no database, no network."""
