"""The connection to a server, without I/O: URLs, the pool of servers, the handshake, PINGs, and changes by INFO."""
