"""Records of a topic, positions, and the reader that stands at one."""
