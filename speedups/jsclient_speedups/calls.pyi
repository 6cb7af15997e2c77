from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

Frame: TypeAlias = tuple[bytes, bytes, bytes, bytes]

class CallbackRun:
    def __init__(
        self,
        front: deque[Frame],
        make_message: Callable[[Frame, Any], Any],
        channel: Any,
        callback: Callable[[Any], Any],
        coroutine_type: type,
    ) -> None: ...
    @property
    def message(self) -> Any: ...
    @property
    def remaining(self) -> int: ...
    def call_run(self, count: int) -> tuple[Any, ...] | None: ...
