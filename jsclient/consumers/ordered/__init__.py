"""Ordered reading, by push and by pull (ADR-17)."""
