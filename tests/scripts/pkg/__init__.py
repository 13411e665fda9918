"""A training package, run as `python -m pkg.train`."""
