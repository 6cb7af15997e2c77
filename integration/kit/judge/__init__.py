"""Judges: the server's own account, waiting, leaks, errors in the background, and what a reader delivered."""
