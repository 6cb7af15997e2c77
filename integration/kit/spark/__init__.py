"""Spark itself: sessions, streaming queries run to their end, drivers in separate processes."""
