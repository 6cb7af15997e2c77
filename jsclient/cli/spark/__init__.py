"""Commands for operating Spark queries. PySpark is not needed."""
