"""A subscribe call, push, pull and ordered consumers, acks."""
