"""A WebSocket to a server: the transport, the tunnel through a proxy, and the HTTP headers."""
