"""Key-value buckets: names, entries, configurations, watches."""
