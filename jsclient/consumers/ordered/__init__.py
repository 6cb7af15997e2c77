"""Ordered consumers and ordered push subscriptions (ADR-17)."""
