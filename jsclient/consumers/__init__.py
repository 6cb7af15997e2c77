"""A message on its way out: push, pull, ordered, worker."""
