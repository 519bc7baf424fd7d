"""The migrations from each version of the schema to the next."""
