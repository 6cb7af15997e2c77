"""Object stores: the handle, reading and writing objects, and watches."""
