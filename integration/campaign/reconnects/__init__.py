"""Reconnects: thousands of lost connections, one after the other. Nothing piles up, and every reader goes on."""

from integration.campaign.reconnects.scenario import run

__all__ = ["run"]
