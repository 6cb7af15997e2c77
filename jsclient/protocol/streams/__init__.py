"""Direct gets, counters and republished messages."""
