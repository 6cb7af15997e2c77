"""Handles and management of what is stored."""
