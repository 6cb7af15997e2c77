"""The asyncio side: runs the trackers of `jsclient.protocol` on a connection. Private: it may change at any time."""
