"""The NATS connection, and the only modules that import nats-py."""
