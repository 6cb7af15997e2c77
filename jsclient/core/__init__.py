"""Plain messages, requests and services, on the connection of a `JetStream`."""
