"""The declarations of `commands` that other modules of this package use."""

cdef bytes numbered_command(bytes subject, bytes prefix, unsigned long long number, bytes header, bytes data)
