"""Bounded reads of streams as Arrow columns, for engines such as Spark, Polars, DuckDB and Ray.

This package needs none of these engines.
"""
