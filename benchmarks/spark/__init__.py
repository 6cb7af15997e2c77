"""The cost of a row in Spark: the source, the sink, acks, an idle query, and the delay of a row."""
