"""The options of source, sink and helpers."""
