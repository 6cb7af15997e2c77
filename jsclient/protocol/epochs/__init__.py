"""Times, frontiers, and the trackers of epoch publishers and subscribers."""
