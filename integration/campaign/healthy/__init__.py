"""Healthy: every kind of reader under mixed load without a fault. No stand-still is told, and nothing is lost."""

from integration.campaign.healthy.scenario import run

__all__ = ["run"]
