"""The watches of a connection that follow the same entries share one consumer."""
