"""Plain messages, requests with several replies, and services."""
