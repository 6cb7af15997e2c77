"""An ordered log and its readers."""
