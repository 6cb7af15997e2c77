"""Reading messages from streams: push and pull subscriptions, ordered consumers, and workers."""
