"""The calls that Spark makes of sources and sinks, without Spark."""
