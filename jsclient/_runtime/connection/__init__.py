"""The NATS connection. It is jsclient's own, from the socket up, or was opened by the user with nats-py."""
