"""The Spark part of the demonstration: flights → statistics → a stream and Parquet, and a work list that is acked.

`driver` is a separate program, a Spark driver with the queries of `queries` under a `watching.Watch`. `pipeline` starts
it, kills it once, starts it again and handles its messages. `results` recounts without Spark, and compares.
"""
