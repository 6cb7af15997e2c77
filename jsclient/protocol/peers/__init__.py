"""Channels and relationships between peers."""
