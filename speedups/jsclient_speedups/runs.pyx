# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Check the sequences of messages that have arrived together, and read their size and the numbers in their JSAcks."""

from libc.string cimport memcmp, memcpy

cdef extern from "Python.h":
    ctypedef struct PyObject
    Py_ssize_t PyList_Size(object) except -1
    PyObject *PyList_GetItem(object, Py_ssize_t) except NULL
    PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t) except NULL
    Py_ssize_t PyBytes_Size(PyObject *) except -1
    char *PyBytes_AsString(PyObject *) except NULL
    bytes PyBytes_FromStringAndSize(const char *, Py_ssize_t)

cdef enum:
    MAX_NUMBER = 19  # maximum number of digits of a number
    NUMBERS = 5  # numbers in a JSAck: deliveries, stream sequence, consumer sequence, time, pending messages
    WIDTH = 8  # bytes of a number
    REPLY = 1  # index of the JSAck in a frame
    PARTS = 4  # number of parts of a frame

cdef unsigned long long MAX_INT64 = 0x7fffffffffffffff


def total_size(list frames not None):
    """Return the size of all frames in bytes, as the server counts them.

    `jsclient.protocol.wire.frames.total_size` is the specification.
    """
    cdef Py_ssize_t size = 0, place, part
    cdef PyObject *frame
    for place in range(PyList_Size(frames)):
        frame = PyList_GetItem(frames, place)
        for part in range(PARTS):
            size += PyBytes_Size(PyTuple_GetItem(frame, part))
    return size


def jsack_numbers(list frames not None):
    """Return the numbers of all JSAcks as five arrays of int64, one array after the other.

    Returns b"" if a reply is not an ordinary JSAck. `jsclient.tables.columns` is the specification.
    """
    cdef Py_ssize_t count = PyList_Size(frames), place, part
    cdef bytes arrays = PyBytes_FromStringAndSize(NULL, NUMBERS * WIDTH * count)
    cdef char *out = PyBytes_AsString(<PyObject *> arrays)
    cdef unsigned long long values[NUMBERS]
    cdef PyObject *reply
    for place in range(count):
        reply = PyTuple_GetItem(PyList_GetItem(frames, place), REPLY)
        if not numbers_of(<const unsigned char *> PyBytes_AsString(reply), PyBytes_Size(reply), values):
            return b""
        for part in range(NUMBERS):
            memcpy(out + (part * count + place) * WIDTH, &values[part], WIDTH)
    return arrays


cdef bint numbers_of(const unsigned char *at, Py_ssize_t size, unsigned long long *values) noexcept nogil:
    """Read the numbers of a JSAck of 9, 11 or 12 tokens. Returns False if the reply has another form."""
    cdef const unsigned char *stop = at + size
    cdef Py_ssize_t index
    cdef int dots = 0, before, part
    if size < 8 or memcmp(at, b"$JS.ACK.", 8) != 0:
        return False
    for index in range(size):
        dots += at[index] == c'.'
    if dots != 8 and dots != 10 and dots != 11:
        return False
    before = 4 if dots == 8 else 6  # the numbers follow the dot with this number, counted from 1
    while True:
        if at[0] == c'.':
            before -= 1
            if before == 0:
                break
        at += 1
    for part in range(NUMBERS):
        if not take(&at, stop, True, &values[part]) or values[part] > MAX_INT64:
            return False
    # The last of 12 tokens may be any text.
    return at == stop if dots != 11 else at != stop and at[0] == c'.'


def last_of_whole_run(list frames not None, bytes run not None, consumer_seq):
    """Return the stream sequence of the last frame if the frames form a run, else 0.

    `jsclient.protocol.consumers.ack.last_of_whole_run` is the specification.
    """
    cdef Py_ssize_t length = len(run), place
    if length == 0:
        return 0
    cdef bint any_number = consumer_seq is None
    cdef unsigned long long due = 0, last = 0, seq, number
    if not any_number:
        if consumer_seq < 1 or consumer_seq >= 10_000_000_000_000_000_000:
            return 0
        due = consumer_seq
    cdef const unsigned char *start = <const unsigned char *> PyBytes_AsString(<PyObject *> run)
    cdef const unsigned char *at
    cdef const unsigned char *stop
    cdef PyObject *reply
    for place in range(PyList_Size(frames)):
        reply = PyTuple_GetItem(PyList_GetItem(frames, place), REPLY)
        at = <const unsigned char *> PyBytes_AsString(reply)
        stop = at + PyBytes_Size(reply)
        if stop - at <= length or memcmp(at, start, length) != 0:
            return 0
        at += length
        if not (take(&at, stop, False, &seq) and take(&at, stop, False, &number)):
            return 0
        if seq <= last or not (any_number or number == due):
            return 0
        last = seq
        due += 1
        # Skip the time and the number of pending messages.
        if not (take(&at, stop, True, &seq) and take(&at, stop, True, &seq)) or at != stop:
            return 0
    return last


cdef bint take(
    const unsigned char **at, const unsigned char *stop, bint may_begin_with_zero, unsigned long long *value
) noexcept nogil:
    """Read a dot and a number of up to 19 digits. Returns False if they do not follow."""
    cdef const unsigned char *place = at[0]
    if place == stop or place[0] != c'.':
        return False
    place += 1
    if place == stop or (place[0] == c'0' and not may_begin_with_zero):
        return False
    cdef const unsigned char *first = place
    value[0] = 0
    while place != stop and c'0' <= place[0] <= c'9':
        if place - first == MAX_NUMBER:
            return False
        value[0] = value[0] * 10 + (place[0] - c'0')
        place += 1
    at[0] = place
    return place != first
