"""The declarations of `ring` that other modules of this package use."""

cdef extern from "Python.h":
    ctypedef struct PyObject

cdef struct Slot:
    PyObject *ticket  # NULL if the slot is free
    PyObject *subject
    PyObject *header
    PyObject *payload
    Py_ssize_t size
    double deadline
    double due
    bint repeatable
    bint acked  # whether its ack was read but the publish is not settled yet

cdef struct Ring:
    Slot *slots
    Py_ssize_t capacity  # a power of two, or 0
    Py_ssize_t count  # number of publishes
    unsigned long long first  # the number of the oldest publish, if there is any
    unsigned long long following  # the number after the newest publish

cdef Slot *find(Ring *ring, unsigned long long number) noexcept nogil
cdef Slot *reserve(Ring *ring, unsigned long long number) noexcept nogil
cdef void fill(Ring *ring, unsigned long long number, Slot *content) noexcept
cdef void remove(Ring *ring, unsigned long long number) noexcept
cdef void trim(Ring *ring) noexcept nogil
cdef void clear(Ring *ring) noexcept
