"""Hostile server: it lies, is slow, floods or breaks off. Every call ends, in time, with documented errors."""

from integration.campaign.hostile.scenarios import run

__all__ = ["run"]
