"""The NATS connection; the only modules that import nats-py."""
