"""Test suites that others wrote, run on a slice; ``python -m tests.suites`` runs them whole."""
