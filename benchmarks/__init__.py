"""Benchmarks: the cost of a message, compared in one run with other clients and the server's limit.

``python -m benchmarks --help``.
"""
