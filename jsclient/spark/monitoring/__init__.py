"""Monitoring of streaming queries: their lag, rates and losses, as log lines and metrics."""
