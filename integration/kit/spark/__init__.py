"""Spark itself: sessions, streaming queries run to their end, drivers in processes of their own."""
