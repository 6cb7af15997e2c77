"""Log mode: a stream read by sequence, in ranges that can be read again."""
