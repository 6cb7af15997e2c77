"""Clients that act in a test: foreign ones, traffic, readers, kits, peers, the demonstration, other processes."""
