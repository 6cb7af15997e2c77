"""Random programs on Spark: filters, unions, joins, windows, several sinks, each with a kill or a replay, recounted."""

from integration.campaign.programs.scenario import run

__all__ = ["run"]
