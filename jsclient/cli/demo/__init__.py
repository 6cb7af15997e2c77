"""The demonstration: flights through queue workers and Spark."""
