"""A compiled scanner for the byte stream of a NATS connection. jsclient uses it if it is installed."""

from .acks import join_acks
from .blocks import ordinary_block
from .calls import CallbackRun
from .commands import burst_commands, publish_command
from .masks import masked
from .parts import find_header, is_ordinary_jsack, split_jsack
from .runs import jsack_numbers, last_of_whole_run, total_size
from .scanner import scan
from .slots import Slots
from .stored import split_stored

__version__ = "0.1.0.dev0"  # the version of jsclient in the same commit

__all__ = [
    "CallbackRun",
    "Slots",
    "__version__",
    "burst_commands",
    "find_header",
    "is_ordinary_jsack",
    "join_acks",
    "jsack_numbers",
    "last_of_whole_run",
    "masked",
    "ordinary_block",
    "publish_command",
    "scan",
    "split_jsack",
    "split_stored",
    "total_size",
]
