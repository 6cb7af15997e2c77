"""The messages, retries and dead letters of one worker."""
