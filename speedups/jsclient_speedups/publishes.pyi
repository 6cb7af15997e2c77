def publish_command(
    subject: bytes, prefix: bytes, number: int, header: bytes, data: bytes
) -> tuple[bytes, bytes]: ...
def burst_commands(
    subjects: list[bytes], replies: list[bytes], headers: list[bytes], payloads: list[bytes]
) -> bytes: ...
def join_acks(
    frames: list[tuple[bytes, bytes, bytes, bytes]],
    start: int,
    stop: int,
    replies: list[bytes] | None = None,
    first: int = 0,
) -> bytes: ...
