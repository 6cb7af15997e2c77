"""Workers, which call handlers with messages, settle the messages, and store dead letters."""
