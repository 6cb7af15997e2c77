"""The Spark sink, which writes rows to a stream."""
