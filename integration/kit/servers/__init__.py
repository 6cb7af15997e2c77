"""Servers: found, started alone or as a cluster, in a container, or faked; their ports, credentials and figures."""
