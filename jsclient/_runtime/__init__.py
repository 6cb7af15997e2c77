"""The asyncio runtime, which runs the trackers of `jsclient.protocol`. It is private, and may change at any time."""
