"""Key-value buckets: the handle, watches, snapshots."""
