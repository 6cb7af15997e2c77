"""All targets."""

from integration.campaign.fuzz.parsers import PARSERS
from integration.campaign.fuzz.trackers import TRACKERS

TARGETS = [*PARSERS, *TRACKERS]
