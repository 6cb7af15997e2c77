"""Publishes until their outcome is known; batches, ingest, schedules."""
