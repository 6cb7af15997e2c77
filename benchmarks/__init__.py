"""Benchmarks: what a message costs, against other clients and the server's own limit, in one run.

``python -m benchmarks --help``.
"""
