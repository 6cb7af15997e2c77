# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Reads single headers, and tells ordinary JSAcks from all other replies."""

from cpython.bytes cimport PyBytes_AsString
from libc.string cimport memchr, memcmp

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object, Py_ssize_t *) except NULL
    str PyUnicode_DecodeUTF8(const char *, Py_ssize_t, const char *)

cdef enum:
    MAX_NUMBER = 19  # digits
    MAX_TOKENS = 9  # after the prefix of a JSAck


def find_header(bytes block not None, name):
    """The first value of a header; None if it is missing.

    `jsclient.protocol.wire.headers.find_header` is the specification.

    Raises:
        ValueError: ``name`` is not an ordinary one (ASCII, without a colon or a line end): the Python reader decides.
    """
    if not isinstance(name, str):
        raise ValueError("the name of a header is a str")
    cdef Py_ssize_t wanted, place
    cdef const unsigned char *text = <const unsigned char *> PyUnicode_AsUTF8AndSize(name, &wanted)
    for place in range(wanted):
        if text[place] >= 128 or text[place] == c':' or text[place] == c'\r' or text[place] == c'\n':
            raise ValueError("not an ordinary name of a header")
    if wanted == 0:
        raise ValueError("the name of a header is empty")
    cdef const unsigned char *at = <const unsigned char *> PyBytes_AsString(block)
    cdef const unsigned char *stop = at + len(block)
    if stop - at < 8 or memcmp(at, b"NATS/1.0", 8) != 0:
        return None
    cdef const unsigned char *end = line_end(at, stop)
    while stop - end >= 2:
        at = end + 2
        end = line_end(at, stop)
        if end == at:
            return None
        if end - at > wanted and at[wanted] == c':' and memcmp(at, text, wanted) == 0:
            at += wanted + 1
            while at < end and (at[0] == c' ' or at[0] == c'\t'):
                at += 1
            while at < end and (end[-1] == c' ' or end[-1] == c'\t'):
                end -= 1
            return PyUnicode_DecodeUTF8(<const char *> at, end - at, b"replace")
    return None


cdef const unsigned char *line_end(const unsigned char *at, const unsigned char *stop) noexcept nogil:
    """Its CR LF; ``stop`` if there is none."""
    while True:
        at = <const unsigned char *> memchr(at, c'\r', stop - at)
        if at == NULL or stop - at < 2:
            return stop
        if at[1] == c'\n':
            return at
        at += 1


def is_ordinary_jsack(bytes reply not None):
    """Whether `jsclient.protocol.consumers.ack.match_jsack` matches, which is the specification."""
    cdef const unsigned char *at = <const unsigned char *> PyBytes_AsString(reply)
    cdef const unsigned char *stop = at + len(reply)
    cdef const unsigned char *begin[MAX_TOKENS + 1]  # of a token
    cdef int count = 0, token
    cdef Py_ssize_t width, place
    if stop - at < 8 or memcmp(at, b"$JS.ACK.", 8) != 0:
        return False
    at += 8
    begin[0] = at
    while at != stop:
        at = <const unsigned char *> memchr(at, c'.', stop - at)
        if at == NULL:
            at = stop
        if at == begin[count] or count == MAX_TOKENS:
            return False
        count += 1
        begin[count] = at + 1
        if at != stop:
            at += 1
            if at == stop:
                return False  # ends with a dot
    if count != MAX_TOKENS - 2 and count != MAX_TOKENS:
        return False
    for token in range(count - 5, count):
        width = begin[token + 1] - begin[token] - 1
        if width > MAX_NUMBER:
            return False
        for place in range(width):
            if begin[token][place] < c'0' or begin[token][place] > c'9':
                return False
    return begin[count - 4][0] != c'0' and begin[count - 3][0] != c'0'
