"""Acks for the messages of a batch, sent by the executors or the driver."""
