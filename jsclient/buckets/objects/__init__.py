"""Object stores: the handle, writing and reading of objects, watches."""
