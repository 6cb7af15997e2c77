"""Frames, headers, names, units and the JSON of the API, as they are on the wire."""
