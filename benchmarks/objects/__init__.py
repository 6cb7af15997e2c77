"""The cost of objects in an object store, compared with nats-py in the same run."""
