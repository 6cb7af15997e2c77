"""A message on its way into a stream, until its outcome is known."""
