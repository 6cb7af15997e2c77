"""What objects of an object store cost, beside nats-py in the same run."""
