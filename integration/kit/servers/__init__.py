"""Servers: found, started alone or as a cluster, in a container, or faked. Their ports, credentials and figures."""
