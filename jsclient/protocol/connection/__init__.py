"""The connection to a server, without I/O: URLs, the pool of servers, the handshake, PINGs, and what INFO changes."""
