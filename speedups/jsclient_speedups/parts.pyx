# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Read single headers and JSAck subjects."""

from cpython.bytes cimport PyBytes_AsString
from libc.string cimport memchr, memcmp

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object, Py_ssize_t *) except NULL
    str PyUnicode_DecodeUTF8(const char *, Py_ssize_t, const char *)

cdef enum:
    MAX_NUMBER = 19  # maximum number of digits of a number
    MAX_TOKENS = 9  # maximum number of tokens after the prefix of a JSAck


def find_header(bytes block not None, name):
    """Return the first value of a header, or None if the header is missing.

    `jsclient.protocol.wire.headers.find_header` is the specification.

    Raises:
        ValueError: ``name`` is empty, not ASCII, or has a colon or a line end. Use the Python function for such names.
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
    """Return the position of the next CR LF, or ``stop`` if there is none."""
    while True:
        at = <const unsigned char *> memchr(at, c'\r', stop - at)
        if at == NULL or stop - at < 2:
            return stop
        if at[1] == c'\n':
            return at
        at += 1


cdef int tokens(bytes reply, const unsigned char **begin) except -1:
    """Find the tokens that follow the prefix of an ordinary JSAck. Returns their number, or 0 for another subject.

    Stores the position of each token in ``begin``. A token ends one byte before the next token begins. For the last
    token, one more position is stored.
    """
    cdef const unsigned char *at = <const unsigned char *> PyBytes_AsString(reply)
    cdef const unsigned char *stop = at + len(reply)
    cdef int count = 0, token
    cdef Py_ssize_t width, place
    if stop - at < 8 or memcmp(at, b"$JS.ACK.", 8) != 0:
        return 0
    at += 8
    begin[0] = at
    while at != stop:
        at = <const unsigned char *> memchr(at, c'.', stop - at)
        if at == NULL:
            at = stop
        if at == begin[count] or count == MAX_TOKENS:
            return 0
        count += 1
        begin[count] = at + 1
        if at != stop:
            at += 1
            if at == stop:
                return 0  # the subject ends with a dot
    if count != MAX_TOKENS - 2 and count != MAX_TOKENS:
        return 0
    for token in range(count - 5, count):
        width = begin[token + 1] - begin[token] - 1
        if width > MAX_NUMBER:
            return 0
        for place in range(width):
            if begin[token][place] < c'0' or begin[token][place] > c'9':
                return 0
    return count if begin[count - 4][0] != c'0' and begin[count - 3][0] != c'0' else 0


def is_ordinary_jsack(bytes reply not None):
    """Return whether a reply is an ordinary JSAck.

    `jsclient.protocol.consumers.ack.match_jsack` is the specification.
    """
    cdef const unsigned char *begin[MAX_TOKENS + 1]
    return tokens(reply, begin) != 0


def split_jsack(bytes reply not None):
    """Return the fields of `jsclient.protocol.consumers.ack.Metadata` in their order, or None for another reply."""
    cdef const unsigned char *begin[MAX_TOKENS + 1]
    cdef int count = tokens(reply, begin)
    if count == 0:
        return None
    domain = None
    if count == MAX_TOKENS and (begin[1] - begin[0] != 2 or begin[0][0] != c'_'):
        domain = text(begin[0], begin[1])
    cdef const unsigned char **rest = begin + count - 7
    return (
        text(rest[0], rest[1]),
        text(rest[1], rest[2]),
        number(rest[2], rest[3]),
        number(rest[3], rest[4]),
        number(rest[4], rest[5]),
        number(rest[5], rest[6]),
        number(rest[6], rest[7]),
        domain,
    )


cdef inline str text(const unsigned char *first, const unsigned char *following):
    return PyUnicode_DecodeUTF8(<const char *> first, following - first - 1, b"surrogateescape")


cdef inline unsigned long long number(const unsigned char *first, const unsigned char *following) noexcept nogil:
    cdef unsigned long long value = 0
    while first != following - 1:
        value = value * 10 + (first[0] - c'0')
        first += 1
    return value
