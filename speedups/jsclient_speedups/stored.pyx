# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Read the headers that a server adds to the stored messages of a direct get."""

from libc.string cimport memcmp

cdef extern from "Python.h":
    ctypedef struct PyObject
    Py_ssize_t PyList_Size(object) except -1
    PyObject *PyList_GetItem(object, Py_ssize_t) except NULL
    PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t) except NULL
    Py_ssize_t PyBytes_Size(PyObject *) except -1
    char *PyBytes_AsString(PyObject *) except NULL
    bytes PyBytes_FromStringAndSize(const char *, Py_ssize_t)

cdef enum:
    MAX_NUMBER = 18  # maximum number of digits, so that a number fits into 64 bits
    BLOCK = 2  # index of the header block in a frame
    LINES = 6  # number of lines that the server adds

ctypedef const unsigned char *Text


def split_stored(list frames not None, last_seq):
    """Read frames, up to the first frame that has an unusual form or does not follow the frame before it.

    The first frame must follow ``last_seq``. `jsclient.protocol.topics.record_codec.StoredRecords.read_frames` is the
    specification.

    Returns:
        A row for each frame that was read, and the number of pending messages in the last of them, or b"" without rows.
        A row consists of the message's own header block without its end, the subject, the stream sequence, and the
        timestamp in nanoseconds. Consecutive rows share equal blocks and subjects.
    """
    cdef list rows = []
    cdef unsigned long long before, seq = 0, value = 0
    cdef long long time_ns = 0
    cdef Py_ssize_t index
    cdef PyObject *block
    cdef Text start
    cdef Text ends[LINES + 1]
    cdef Text pending = NULL
    cdef Py_ssize_t pending_size = 0
    cdef bytes head = b"", subject = b""
    if last_seq < 0 or last_seq >= 1_000_000_000_000_000_000:
        return rows, b""
    before = last_seq
    for index in range(PyList_Size(frames)):
        block = PyTuple_GetItem(PyList_GetItem(frames, index), BLOCK)
        start = <Text> PyBytes_AsString(block)
        if not line_ends(start, start + PyBytes_Size(block), ends):
            break
        # Each line begins with the two bytes that end the line before it.
        if not (
            begins(ends[1], ends[2], b"\r\nNats-Subject: ", 16)
            and number(ends[2], ends[3], b"\r\nNats-Sequence: ", 17, &seq)
            and begins(ends[3], ends[4], b"\r\nNats-Time-Stamp: ", 19)
            and time_stamp(ends[3] + 19, ends[4], &time_ns)
            and number(ends[4], ends[5], b"\r\nNats-Num-Pending: ", 20, &value)
            and number(ends[5], ends[6], b"\r\nNats-Last-Sequence: ", 22, &value)
            and value == before
        ):
            break
        head = shared(head, start, ends[0])
        subject = shared(subject, ends[1] + 16, ends[2])
        rows.append((head, subject, seq, time_ns))
        pending, pending_size = ends[4] + 20, ends[5] - ends[4] - 20
        before = seq
    return rows, b"" if pending == NULL else PyBytes_FromStringAndSize(<const char *> pending, pending_size)


cdef bint line_ends(Text start, Text stop, Text *ends) noexcept nogil:
    """Find the ends of the lines that the server adds, and of the line before them.

    Returns False if the block has fewer lines.
    """
    cdef int index = LINES
    cdef Text at = stop - 4
    if stop - start < 4 or memcmp(at, b"\r\n\r\n", 4) != 0:
        return False
    while True:
        ends[index] = at
        if index == 0:
            return True
        index -= 1
        at -= 1
        while True:
            if at <= start:
                return False
            if at[0] == c'\n' and (at - 1)[0] == c'\r':
                break
            at -= 1
        at -= 1


cdef bint begins(Text at, Text end, const char *text, Py_ssize_t size) noexcept nogil:
    return end - at >= size and memcmp(at, text, size) == 0


cdef bint number(Text at, Text end, const char *text, Py_ssize_t size, unsigned long long *value) noexcept nogil:
    """Read a line with a name and a number without leading zeros. Returns False if the line has another form."""
    if not begins(at, end, text, size):
        return False
    at += size
    if at == end or end - at > MAX_NUMBER or (at[0] == c'0' and end - at > 1):
        return False
    return digits(at, end - at, value)


cdef bint digits(Text at, Py_ssize_t count, unsigned long long *value) noexcept nogil:
    cdef Py_ssize_t index
    value[0] = 0
    for index in range(count):
        if at[index] < c'0' or at[index] > c'9':
            return False
        value[0] = value[0] * 10 + (at[index] - c'0')
    return True


cdef bint time_stamp(Text at, Text end, long long *time_ns) noexcept nogil:
    """Read a timestamp such as ``2026-01-31T12:00:00.5Z``. Returns False if Python has to read the timestamp."""
    cdef unsigned long long year, month, day, hour, minute, second, fraction = 0
    cdef Py_ssize_t count = end - at
    cdef long long days
    if count < 20 or (end - 1)[0] != c'Z':
        return False
    if at[4] != c'-' or at[7] != c'-' or at[10] != c'T' or at[13] != c':' or at[16] != c':':
        return False
    if not (
        digits(at, 4, &year)
        and digits(at + 5, 2, &month)
        and digits(at + 8, 2, &day)
        and digits(at + 11, 2, &hour)
        and digits(at + 14, 2, &minute)
        and digits(at + 17, 2, &second)
    ):
        return False
    # Leave 29 February and years before 1970 to Python.
    if year < 1970 or year > 2200 or month < 1 or month > 12 or day < 1:
        return False
    if day > (28 if month == 2 else 30 + (month + month // 8) % 2):
        return False
    if hour > 23 or minute > 59 or second > 59:
        return False
    if count > 20:
        count -= 21
        if at[19] != c'.' or count < 1 or count > 9 or not digits(at + 20, count, &fraction):
            return False
        while count < 9:
            fraction *= 10
            count += 1
    # Count years from March, so that the leap day is the last day of a year.
    if month <= 2:
        year -= 1
        month += 12
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 719_469
    time_ns[0] = ((days * 24 + hour) * 60 + minute) * 60 + second
    time_ns[0] = time_ns[0] * 1_000_000_000 + fraction
    return True


cdef bytes shared(bytes last, Text at, Text end):
    """Return ``last`` if it is equal to these bytes, else a new object."""
    cdef Py_ssize_t size = end - at
    if len(last) == size and memcmp(PyBytes_AsString(<PyObject *> last), at, size) == 0:
        return last
    return PyBytes_FromStringAndSize(<const char *> at, size)
