"""Benchmarks: what a message costs, against nats-py, in one run. ``python -m benchmarks --help``."""
