"""Writing rows to a stream."""
