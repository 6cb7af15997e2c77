"""Fuzz: every parser and tracker on damaged input, made by grammar, from a seed."""

from integration.campaign.fuzz.engine import run

__all__ = ["run"]
