"""Rotation: users' JWTs expire, are exchanged and revoked while their publishers and readers work. Nothing is lost."""

from integration.campaign.rotation.scenario import run

__all__ = ["run"]
