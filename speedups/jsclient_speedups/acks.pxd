"""The declarations of `acks` that other modules of this package use."""

cdef extern from "Python.h":
    ctypedef struct PyObject

ctypedef const unsigned char *Text

cdef bint is_ordinary_ack(Text at, Py_ssize_t length) noexcept nogil
cdef bytes joined(list frames, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t size)
cdef unsigned long long number_of(PyObject *reply, bytes prefix) except? 0
