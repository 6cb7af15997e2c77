"""All targets."""

from integration.campaign.fuzz.parsers import PARSERS
from integration.campaign.fuzz.trackers import TRACKERS
from integration.campaign.fuzz.windows import WINDOWS

TARGETS = [*PARSERS, *TRACKERS, *WINDOWS]
