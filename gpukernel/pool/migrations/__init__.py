"""The steps from each shape of the database to the next, and what takes them when a pool starts."""
