"""The Spark part of ``jsclient demo``: flights → statistics → a stream and Parquet, and a work list that is acked.

`driver` is a program of its own: a Spark driver, with the queries of `queries`. `pipeline` starts it, kills it once,
starts it again and listens to it. `recount` computes the same without Spark, and `checking` compares.
"""
