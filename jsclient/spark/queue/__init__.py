"""Queue mode: messages claimed from a durable consumer, and acked when their batch is done."""
