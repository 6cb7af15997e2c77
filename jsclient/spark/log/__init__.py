"""Log mode, which reads a stream by sequence, in repeatable ranges."""
