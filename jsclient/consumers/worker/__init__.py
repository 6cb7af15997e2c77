"""Workers: handlers, settlement, dead letters."""
