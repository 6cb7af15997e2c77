"""Records of a topic, positions, links between records, and the reader of a topic."""
