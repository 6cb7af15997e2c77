"""Acknowledging the messages of a batch, from the executors or the driver."""
