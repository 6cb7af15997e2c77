"""The demonstration: flights are processed by queue workers and by Spark."""
