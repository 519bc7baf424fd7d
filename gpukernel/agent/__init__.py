"""The agent of one GPU server: finds its devices, starts, adopts and stops workers, and speaks with the pool."""
