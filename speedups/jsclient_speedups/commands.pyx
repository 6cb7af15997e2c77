# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Write the commands that publish messages."""

from libc.string cimport memcpy

cdef extern from "Python.h":
    ctypedef struct PyObject
    Py_ssize_t PyList_Size(object) except -1
    PyObject *PyList_GetItem(object, Py_ssize_t) except NULL
    Py_ssize_t PyBytes_Size(PyObject *) except -1
    char *PyBytes_AsString(PyObject *) except NULL
    bytes PyBytes_FromStringAndSize(const char *, Py_ssize_t)

cdef enum:
    MAX_DIGITS = 20  # maximum number of digits of a number in a command


def publish_command(bytes subject not None, bytes prefix not None, number, bytes header not None, bytes data not None):
    """Return the reply subject of a message, and the command that publishes the message.

    The reply subject is the prefix followed by the number. `jsclient.protocol.wire.commands.publish_command` is the
    specification.
    """
    cdef char digits[MAX_DIGITS]
    cdef unsigned long long value = number
    cdef Py_ssize_t count = write_number(digits, value)
    cdef Py_ssize_t prefix_size = len(prefix), head = len(header), body = len(data)
    cdef bytes reply = PyBytes_FromStringAndSize(NULL, prefix_size + count)
    cdef char *at = PyBytes_AsString(<PyObject *> reply)
    memcpy(at, PyBytes_AsString(<PyObject *> prefix), prefix_size)
    memcpy(at + prefix_size, digits, count)
    cdef Py_ssize_t size = command_size(len(subject), prefix_size + count, head, body)
    cdef bytes command = PyBytes_FromStringAndSize(NULL, size)
    write_command(
        PyBytes_AsString(<PyObject *> command),
        <PyObject *> subject,
        <PyObject *> reply,
        <PyObject *> header,
        <PyObject *> data,
    )
    return reply, command


def burst_commands(
    list subjects not None, list replies not None, list headers not None, list payloads not None
):
    """Return the commands that publish messages.

    `jsclient.protocol.wire.commands.burst_commands` is the specification.
    """
    cdef Py_ssize_t count = PyList_Size(subjects), index, size = 0
    if PyList_Size(replies) != count or PyList_Size(headers) != count or PyList_Size(payloads) != count:
        raise ValueError("the columns have different lengths")
    for index in range(count):
        size += command_size(
            PyBytes_Size(PyList_GetItem(subjects, index)),
            PyBytes_Size(PyList_GetItem(replies, index)),
            PyBytes_Size(PyList_GetItem(headers, index)),
            PyBytes_Size(PyList_GetItem(payloads, index)),
        )
    cdef bytes commands = PyBytes_FromStringAndSize(NULL, size)
    cdef char *at = PyBytes_AsString(<PyObject *> commands)
    for index in range(count):
        at = write_command(
            at,
            PyList_GetItem(subjects, index),
            PyList_GetItem(replies, index),
            PyList_GetItem(headers, index),
            PyList_GetItem(payloads, index),
        )
    return commands


cdef Py_ssize_t write_number(char *at, unsigned long long value) noexcept nogil:
    """Write a number, and return the number of its digits."""
    cdef char reverse[MAX_DIGITS]
    cdef Py_ssize_t count = 0, index
    while True:
        reverse[count] = <char> (c'0' + value % 10)
        count += 1
        value //= 10
        if value == 0:
            break
    for index in range(count):
        at[index] = reverse[count - 1 - index]
    return count


cdef Py_ssize_t digits_of(Py_ssize_t value) noexcept nogil:
    cdef Py_ssize_t count = 1
    while value >= 10:
        value //= 10
        count += 1
    return count


cdef Py_ssize_t command_size(Py_ssize_t subject, Py_ssize_t reply, Py_ssize_t head, Py_ssize_t body) noexcept nogil:
    """Return the size of a command whose parts have these sizes."""
    cdef Py_ssize_t size = subject + reply + head + body + digits_of(head + body) + 10
    return size + 2 + digits_of(head) if head else size


cdef char *write_command(char *at, PyObject *subject, PyObject *reply, PyObject *header, PyObject *data) except NULL:
    """Write the command of one message, and return the position after it."""
    return write_parts(at, subject, reply, b"", 0, header, data)


cdef bytes numbered_command(bytes subject, bytes prefix, unsigned long long number, bytes header, bytes data):
    """Return the command of one message, whose reply subject is the prefix followed by the number."""
    cdef char digits[MAX_DIGITS]
    cdef Py_ssize_t count = write_number(digits, number)
    cdef Py_ssize_t size = command_size(len(subject), len(prefix) + count, len(header), len(data))
    cdef bytes command = PyBytes_FromStringAndSize(NULL, size)
    write_parts(
        PyBytes_AsString(<PyObject *> command),
        <PyObject *> subject,
        <PyObject *> prefix,
        digits,
        count,
        <PyObject *> header,
        <PyObject *> data,
    )
    return command


cdef char *write_parts(
    char *at, PyObject *subject, PyObject *reply, char *digits, Py_ssize_t count, PyObject *header, PyObject *data
) except NULL:
    """Write the command of one message, and return the position after it. The reply subject ends with the digits."""
    cdef Py_ssize_t head = PyBytes_Size(header), body = PyBytes_Size(data)
    if head:
        at = write_text(at, b"HPUB ", 5)
    else:
        at = write_text(at, b"PUB ", 4)
    at = write_text(at, PyBytes_AsString(subject), PyBytes_Size(subject))
    at = write_text(at, b" ", 1)
    at = write_text(at, PyBytes_AsString(reply), PyBytes_Size(reply))
    at = write_text(at, digits, count)
    at = write_text(at, b" ", 1)
    if head:
        at += write_number(at, head)
        at = write_text(at, b" ", 1)
    at += write_number(at, head + body)
    at = write_text(at, b"\r\n", 2)
    at = write_text(at, PyBytes_AsString(header), head)
    at = write_text(at, PyBytes_AsString(data), body)
    return write_text(at, b"\r\n", 2)


cdef char *write_text(char *at, const char *text, Py_ssize_t size) noexcept nogil:
    memcpy(at, text, size)
    return at + size
