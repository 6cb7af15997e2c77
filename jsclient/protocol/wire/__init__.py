"""Frames, headers, names, units and the JSON of the API."""
