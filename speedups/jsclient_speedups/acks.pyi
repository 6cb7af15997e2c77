def join_acks(
    frames: list[tuple[bytes, bytes, bytes, bytes]],
    start: int,
    stop: int,
    replies: list[bytes] | None = None,
    first: int = 0,
) -> bytes: ...
