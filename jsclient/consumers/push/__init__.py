"""Subscriptions to push consumers (ADR-15)."""
