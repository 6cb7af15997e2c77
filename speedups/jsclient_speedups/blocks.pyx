# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Write header blocks. `jsclient.protocol.wire.headers.ordinary_block` is the specification."""

from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_Next
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_CheckExact
from libc.string cimport memcpy

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object, Py_ssize_t *) except NULL

cdef unsigned char in_name[256]
for place in bytearray(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"):
    in_name[place] = 1


def ordinary_block(dict headers not None):
    """Return the header block, if all names are tokens and all values are printable ASCII.

    Otherwise return None, and the caller has to check the headers one by one.
    """
    cdef Py_ssize_t at = 0, total = 12, size
    cdef PyObject *name
    cdef PyObject *value
    while PyDict_Next(headers, &at, &name, &value):
        size = measured(<object> name, True)
        if size <= 0:
            return None
        total += size + 4
        size = measured(<object> value, False)
        if size < 0:
            return None
        total += size
    block = PyBytes_FromStringAndSize(NULL, total)
    cdef char *to = <char *> PyBytes_AsString(block)
    to = copied(to, b"NATS/1.0\r\n", 10)
    at = 0
    while PyDict_Next(headers, &at, &name, &value):
        to = copied(written(to, <object> name), b": ", 2)
        to = copied(written(to, <object> value), b"\r\n", 2)
    copied(to, b"\r\n", 2)
    return block


cdef Py_ssize_t measured(text, bint is_name):
    """Return the size of a name or of a value, or -1 if it has unusual characters or is not a str."""
    cdef Py_ssize_t size, place
    cdef const unsigned char *begin
    if not PyUnicode_CheckExact(text):
        return -1
    try:
        begin = <const unsigned char *> PyUnicode_AsUTF8AndSize(text, &size)
    except UnicodeEncodeError:  # a lone surrogate
        return -1
    for place in range(size):
        if not in_name[begin[place]] if is_name else not 32 <= begin[place] < 127:
            return -1
    return size


cdef char *written(char *to, text) except NULL:
    cdef Py_ssize_t size
    cdef const char *begin = PyUnicode_AsUTF8AndSize(text, &size)
    return copied(to, begin, size)


cdef inline char *copied(char *to, const char *begin, Py_ssize_t size) noexcept:
    memcpy(to, begin, size)
    return to + size
