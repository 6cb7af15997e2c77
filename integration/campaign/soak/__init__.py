"""Soak: traffic with reconnects, resubscriptions and cancellations at random instants. Nothing piles up."""

from integration.campaign.soak.scenario import run

__all__ = ["run"]
