"""Acks of a batch, from executors or the driver."""
