"""The NATS connection: our own from the socket up, or one that the user has opened with nats-py."""
