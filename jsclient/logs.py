"""The logs that topics are read from, for logs of your own and for readers without a topic.

::

    from jsclient.logs import LogReader, MemoryLog

`JetStream.topic` is the usual way; its readers work on any `Log`.
"""

from __future__ import annotations

from ._module import set_module
from .topics.log import Feed, Log, Page
from .topics.log_reader import LogReader
from .topics.memory_log import MemoryLog
from .topics.stream_log import StreamLog

__all__ = ["Feed", "Log", "LogReader", "MemoryLog", "Page", "StreamLog"]

set_module(__name__, map(globals().__getitem__, __all__))
