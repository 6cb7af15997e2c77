"""The asyncio side: runs the trackers of `jsclient.protocol` on a connection. Private; free to change."""
