"""Strangers: a user with exactly the rights that the library prints attacks, also through where answers go."""

from integration.campaign.strangers.attack import run

__all__ = ["run"]
