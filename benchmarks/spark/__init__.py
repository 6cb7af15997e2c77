"""What a row costs in Spark: the source, the sink, acks, an idle query, and how late a row is."""
