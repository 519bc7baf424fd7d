"""Small programs of compilers that have no tests in reach, against NumPy; ``make suites`` runs them on a slice."""
