"""Flood: forged advisories about exhausted deliveries by the ten thousand. Each true dead letter is stored once."""

from integration.campaign.flood.scenario import run

__all__ = ["run"]
