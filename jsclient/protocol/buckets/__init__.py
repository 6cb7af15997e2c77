"""Key-value buckets and object stores without I/O: names, entries, descriptions and configurations."""
