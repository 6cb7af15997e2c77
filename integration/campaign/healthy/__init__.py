"""Healthy: every kind of reader under mixed load without a fault. No stall is reported, and no message is lost."""

from integration.campaign.healthy.scenario import run

__all__ = ["run"]
