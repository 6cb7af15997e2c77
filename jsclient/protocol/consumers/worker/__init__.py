"""One worker's messages, retries and dead letters."""
