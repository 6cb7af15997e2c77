# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A scanner that splits the ordinary part of the byte stream of a NATS connection into frames.

`jsclient._runtime.connection.wire.FrameReader` is the specification. The scanner accepts a frame only if the Python
reader accepts it too, and in the same way. Everything else is left to the Python reader.
"""

from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize
from libc.string cimport memchr, memcmp

cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    MAX_FIELDS = 5  # fields of HMSG: subject, sid, reply, header size, total size
    MAX_DIGITS = 640  # int() accepts this many digits under every setting of the interpreter
    MAX_HMSG_DIGITS = 12


cdef Py_ssize_t number(const unsigned char *text, Py_ssize_t size) noexcept nogil:
    """Return the value of ``size`` digits, but at most PY_SSIZE_T_MAX. Returns -1 if they are not all digits."""
    cdef Py_ssize_t value = 0
    cdef Py_ssize_t place
    if size == 0 or size > MAX_DIGITS:
        return -1
    for place in range(size):
        if text[place] < c'0' or text[place] > c'9':
            return -1
        if value > (PY_SSIZE_T_MAX - 9) // 10:
            value = PY_SSIZE_T_MAX
        else:
            value = value * 10 + (text[place] - c'0')
    return value


cdef inline bytes copy(const unsigned char *text, Py_ssize_t size):
    return PyBytes_FromStringAndSize(<const char *> text, size)


def scan(bytes data not None, Py_ssize_t start=0):
    """Read frames from offset ``start`` up to the first bytes that are not a whole, well-formed frame.

    Returns:
        Runs of frames, ``[(sid, [(subject, reply, header, payload), ...]), ...]``, in order. The frames of a run belong
        to one subscription. Also the offset at which the scan stopped, which is before a control line, an incomplete or
        a malformed frame, or at the end of the data.

    Raises:
        ValueError: ``start`` is not an offset in ``data``.
    """
    cdef Py_ssize_t size = len(data)
    if start < 0 or start > size:
        raise ValueError(f"offset {start} of {size} bytes; it must be from 0 to their number")
    cdef const unsigned char *first = <const unsigned char *> PyBytes_AsString(data)
    cdef const unsigned char *stop = first + size
    cdef const unsigned char *at = first + start
    cdef const unsigned char *end  # the CR of the control line
    cdef const unsigned char *field
    cdef const unsigned char *space
    cdef const unsigned char *body
    cdef const unsigned char *begin[MAX_FIELDS]
    cdef Py_ssize_t width[MAX_FIELDS]
    cdef Py_ssize_t total, head
    cdef int count, fields  # number of fields, and the expected number without a reply
    cdef const unsigned char *sid_text = NULL
    cdef const unsigned char *subject_text = NULL
    cdef Py_ssize_t sid_size = 0, subject_size = 0
    cdef bytes subject = b"", reply, header
    cdef list runs = [], frames = None
    while at < stop:
        end = <const unsigned char *> memchr(at, c'\r', stop - at)
        if end == NULL or stop - end < 2 or end[1] != c'\n':
            break
        if end - at > 4 and memcmp(at, b"MSG ", 4) == 0:
            field, fields = at + 4, 3
        elif end - at > 5 and memcmp(at, b"HMSG ", 5) == 0:
            field, fields = at + 5, 4
        else:
            break
        count = 0
        space = NULL
        while count < MAX_FIELDS and space != end:
            space = <const unsigned char *> memchr(field, c' ', end - field)
            if space == NULL:
                space = end
            begin[count] = field
            width[count] = space - field
            count += 1
            field = space + 1
        if space != end or (count != fields and count != fields + 1):
            break
        total = number(begin[count - 1], width[count - 1])
        if total < 0:
            break
        head = 0
        if fields == 4:
            head = number(begin[count - 2], width[count - 2])
            if head < 0 or head > total or width[count - 2] > width[count - 1] or width[count - 1] > MAX_HMSG_DIGITS:
                break
        body = end + 2
        if stop - body < 2 or total > stop - body - 2 or body[total] != c'\r' or body[total + 1] != c'\n':
            break
        if frames is None or width[1] != sid_size or memcmp(begin[1], sid_text, sid_size) != 0:
            sid_text, sid_size = begin[1], width[1]
            frames = []
            runs.append((copy(sid_text, sid_size), frames))
        if subject_text == NULL or width[0] != subject_size or memcmp(begin[0], subject_text, subject_size) != 0:
            subject_text, subject_size = begin[0], width[0]
            subject = copy(subject_text, subject_size)
        reply = copy(begin[2], width[2]) if count > fields else b""
        header = copy(body, head) if head else b""
        frames.append((subject, reply, header, copy(body + head, total - head)))
        at = body + total + 2
    return runs, at - first
