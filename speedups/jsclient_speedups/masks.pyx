# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Mask the payload of a WebSocket frame."""

from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from libc.string cimport memcpy


def masked(bytes payload not None, bytes mask not None):
    """Return the payload with the 4 bytes of ``mask`` applied.

    `jsclient.protocol.connection.websocket.masked` is the specification.
    """
    cdef Py_ssize_t size = len(payload), at
    if len(mask) != 4:
        raise ValueError("a mask has 4 bytes")
    result = PyBytes_FromStringAndSize(NULL, size)
    cdef const unsigned char *source = <const unsigned char *> PyBytes_AsString(payload)
    cdef unsigned char *to = <unsigned char *> PyBytes_AsString(result)
    cdef unsigned char eight[8]
    cdef unsigned long long masks, word
    memcpy(eight, PyBytes_AsString(mask), 4)
    memcpy(eight + 4, eight, 4)
    memcpy(&masks, eight, 8)
    cdef Py_ssize_t whole = size - size % 8
    for at in range(0, whole, 8):
        memcpy(&word, source + at, 8)
        word ^= masks
        memcpy(to + at, &word, 8)
    for at in range(whole, size):
        to[at] = source[at] ^ eight[at % 8]
    return result
