"""Push subscriptions (ADR-15)."""
