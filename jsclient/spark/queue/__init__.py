"""Queue mode, which claims messages from a durable consumer and acks them after their batch."""
