# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Read the acks of publishes."""

from libc.string cimport memcmp, memcpy

cdef extern from "Python.h":
    Py_ssize_t PyList_Size(object) except -1
    PyObject *PyList_GetItem(object, Py_ssize_t) except NULL
    PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t) except NULL
    Py_ssize_t PyBytes_Size(PyObject *) except -1
    char *PyBytes_AsString(PyObject *) except NULL
    bytes PyBytes_FromStringAndSize(const char *, Py_ssize_t)

cdef enum:
    MAX_NUMBER = 19  # maximum number of digits of a number
    REPLY = 0  # index in a frame of the subject to which the ack was sent
    PAYLOAD = 3  # index in a frame of the payload


def join_acks(list frames not None, Py_ssize_t start, Py_ssize_t stop, list replies=None, Py_ssize_t first=0):
    """Join the acks in ``frames[start:stop]`` into a JSON array.

    Args:
        replies: The subjects to which the acks must have been sent, from the index ``first`` on, or None for any
            subjects.

    Returns:
        The array, with one ack for each frame. Each ack has a stream and a valid sequence. b"" if there are no frames,
        if a frame is not an ordinary ack, or if an ack was sent to another subject.
    """
    cdef Py_ssize_t index, size = 1, length
    cdef PyObject *frame
    cdef PyObject *payload
    cdef PyObject *reply
    cdef PyObject *due
    if start < 0 or stop > PyList_Size(frames) or start >= stop:
        return b""
    if replies is not None and (first < 0 or first + stop - start > PyList_Size(replies)):
        return b""
    for index in range(start, stop):
        frame = PyList_GetItem(frames, index)
        if replies is not None:
            reply = PyTuple_GetItem(frame, REPLY)
            due = PyList_GetItem(replies, first + index - start)
            length = PyBytes_Size(due)
            if PyBytes_Size(reply) != length or memcmp(PyBytes_AsString(reply), PyBytes_AsString(due), length) != 0:
                return b""
        payload = PyTuple_GetItem(frame, PAYLOAD)
        length = PyBytes_Size(payload)
        if not is_ordinary_ack(<Text> PyBytes_AsString(payload), length):
            return b""
        size += length + 1
    return joined(frames, start, stop, size)


cdef bytes joined(list frames, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t size):
    """Return a JSON array of the payloads of ``frames[start:stop]``. ``size`` is the size of the array in bytes."""
    cdef Py_ssize_t index, length
    cdef PyObject *payload
    cdef bytes array = PyBytes_FromStringAndSize(NULL, size)
    cdef char *at = PyBytes_AsString(<PyObject *> array)
    for index in range(start, stop):
        payload = PyTuple_GetItem(PyList_GetItem(frames, index), PAYLOAD)
        length = PyBytes_Size(payload)
        at[0] = c'[' if index == start else c','
        memcpy(at + 1, PyBytes_AsString(payload), length)
        at += length + 1
    at[0] = c']'
    return array


cdef unsigned long long number_of(PyObject *reply, bytes prefix) except? 0:
    """Return the number that follows the prefix in a reply subject, or 0 if the subject has another form."""
    cdef Py_ssize_t size = len(prefix), length = PyBytes_Size(reply), index
    cdef const char *at = PyBytes_AsString(reply)
    cdef unsigned long long number = 0
    if not 0 < length - size <= MAX_NUMBER or memcmp(at, PyBytes_AsString(<PyObject *> prefix), size) != 0:
        return 0
    if at[size] == c'0':
        return 0
    for index in range(size, length):
        if not c'0' <= at[index] <= c'9':
            return 0
        number = number * 10 + (at[index] - c'0')
    return number


cdef bint is_ordinary_ack(Text at, Py_ssize_t length) noexcept nogil:
    """Return whether this is an ack exactly as a server writes it.

    Such an ack has a stream, perhaps a domain, a sequence, and perhaps the flag of a duplicate, in this order.
    """
    cdef Text stop = at + length
    cdef Text first
    if not passes(&at, stop, b'{"stream":"', 11) or not passes_text(&at, stop):
        return False
    passes(&at, stop, b' ', 1)
    if passes(&at, stop, b'"domain":"', 10):
        if not passes_text(&at, stop):
            return False
        passes(&at, stop, b' ', 1)
    if not passes(&at, stop, b'"seq":', 6):
        return False
    first = at
    while at != stop and c'0' <= at[0] <= c'9':
        at += 1
    if at == first or first[0] == c'0' or at - first > MAX_NUMBER:
        return False
    passes(&at, stop, b',"duplicate": true', 18)
    return passes(&at, stop, b'}', 1) and at == stop


cdef bint passes(Text *at, Text stop, const char *text, Py_ssize_t size) noexcept nogil:
    """Move past a text. Returns False if the text does not follow."""
    if stop - at[0] < size or memcmp(at[0], text, size) != 0:
        return False
    at[0] += size
    return True


cdef bint passes_text(Text *at, Text stop) noexcept nogil:
    """Move past the rest of a string, its closing quote and a comma.

    Returns False if the string is empty or has unusual characters, or if no comma follows.
    """
    cdef Text first = at[0]
    cdef Text here = first
    while here != stop and here[0] != c'"':
        if here[0] < 0x20 or here[0] > 0x7e or here[0] == c'\\':
            return False
        here += 1
    if here == first or stop - here < 2 or here[1] != c',':
        return False
    at[0] = here + 2
    return True
