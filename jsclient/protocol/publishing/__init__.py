"""Publishes in flight, atomic batches, fast ingest, and schedules."""
