"""Lossy notifiers and lossless subscriptions."""
