"""What other modules of this package take from `commands`."""

cdef bytes numbered_command(bytes subject, bytes prefix, unsigned long long number, bytes header, bytes data)
