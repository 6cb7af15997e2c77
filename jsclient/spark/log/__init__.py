"""Log mode: reading a stream by sequence, in repeatable ranges."""
