# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The publishes in flight that had no errors so far, with their commands and their acks."""

from libc.stdlib cimport free, malloc

from .acks cimport Text, is_ordinary_ack, joined, number_of
from .commands cimport numbered_command
from .ring cimport PyObject, Ring, Slot, clear, fill, find, remove, reserve, trim

cdef extern from "Python.h":
    void Py_DECREF(PyObject *)
    Py_ssize_t PyDict_Size(object) except -1
    object PyObject_Call(object, object, object)
    Py_ssize_t PyList_Size(object) except -1
    PyObject *PyList_GetItem(object, Py_ssize_t) except NULL
    int PyList_Append(object, object) except -1
    PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t) except NULL
    Py_ssize_t PyBytes_Size(PyObject *) except -1
    char *PyBytes_AsString(PyObject *) except NULL
    PyObject *PyObject_CallMethodObjArgs(PyObject *, PyObject *, PyObject *, void *)
    int PyErr_ExceptionMatches(PyObject *)
    void PyErr_Clear()

cdef enum:
    REPLY = 0  # index in a frame of the subject to which the ack was sent
    PAYLOAD = 3  # index in a frame of the payload

cdef tuple NOTHING = ()
cdef str SET_RESULT = "set_result"


cdef class Slots:
    """A table of publishes in flight, specified by `tests.support.slots.Slots` and used by `SlotWindow`."""

    cdef Ring ring
    cdef unsigned long long resumes
    cdef object others, ticket, options, decode, done_error, sooner, check_size, too_much, outbox
    cdef list commands
    cdef double attempt, max_count, watch
    cdef Py_ssize_t largest
    cdef bytes prefix_
    cdef public unsigned long long number
    cdef public Py_ssize_t size, small
    cdef public double next_check

    def __init__(self, ticket, loop, decode, done_error, double attempt, Py_ssize_t largest):
        self.ticket, self.options, self.decode, self.done_error = ticket, {"loop": loop}, decode, done_error
        self.attempt, self.largest, self.prefix_, self.others = attempt, largest, b"", {}

    def __dealloc__(self):
        clear(&self.ring)

    def connect(self, dict others not None, double max_count, double watch, outbox, sooner, check_size, too_much):
        self.outbox, self.commands = outbox, outbox.commands
        self.others, self.max_count, self.watch = others, max_count, watch
        self.sooner, self.check_size, self.too_much = sooner, check_size, too_much

    def __len__(self):
        return self.ring.count + PyDict_Size(self.others)

    @property
    def prefix(self):
        return self.prefix_

    @prefix.setter
    def prefix(self, bytes prefix not None):
        if self.ring.count:
            raise ValueError("publishes with another prefix are in flight")
        self.prefix_ = prefix

    @property
    def oldest(self):
        return self.ring.first if self.ring.count else 0

    def rest(self, unsigned long long count):
        self.resumes = self.number + count

    cdef bint has_room(self, Py_ssize_t size, bint admitted) except -1:
        """Return whether the next publish, of ``size`` bytes, may use a slot."""
        if size > self.largest or self.number < self.resumes:
            return False
        return admitted or self.ring.count + PyDict_Size(self.others) < self.max_count

    def publish(
        self, bytes subject not None, bytes header not None, bytes data not None, double now, double timeout,
        bint repeatable, bint admitted,
    ):
        cdef Py_ssize_t size = len(header) + len(data)
        cdef Slot content
        if size > self.small and not admitted:
            self.check_size(size)  # raises an error
        if self.size + size > self.watch and not admitted and self.too_much(self.size + size):
            return None
        if not self.has_room(size, admitted):
            return None
        # This may collect garbage, and so run code that publishes. So check again afterwards.
        future = PyObject_Call(self.ticket, NOTHING, self.options)
        if not self.has_room(size, admitted) or reserve(&self.ring, self.number + 1) == NULL:
            return None
        command = numbered_command(subject, self.prefix_, self.number + 1, header, data)
        self.outbox.size = <Py_ssize_t> self.outbox.size + PyBytes_Size(<PyObject *> command)
        PyList_Append(self.commands, command)
        self.number += 1
        self.size += size
        content.ticket, content.subject = <PyObject *> future, <PyObject *> subject
        content.header, content.payload = <PyObject *> header, <PyObject *> data
        content.size, content.repeatable, content.acked = size, repeatable, False
        content.deadline = content.due = now + timeout
        if repeatable and now + self.attempt < content.due:
            content.due = now + self.attempt
        fill(&self.ring, self.number, &content)
        if content.due < self.next_check:
            self.sooner(content.due)
        return future

    def take(self, list frames not None, Py_ssize_t start, dict answered not None):
        cdef Py_ssize_t most = PyList_Size(frames) - start, taken = 0, text = 1, stored = 0, index
        cdef unsigned long long *numbers
        cdef Slot *slot
        if start < 0 or most <= 0 or self.ring.count == 0:
            return start, 0
        most = min(most, self.ring.count)
        numbers = <unsigned long long *> malloc(most * sizeof(unsigned long long))
        if numbers == NULL:
            raise MemoryError
        try:
            while taken < most:
                numbers[taken] = self.acked(PyList_GetItem(frames, start + taken), &text)
                if numbers[taken] == 0:
                    break
                taken += 1
            if taken == 0:
                return start, 0
            acks = self.decode(joined(frames, start, start + taken, text))
            latest = None
            for index in range(taken):
                slot = find(&self.ring, numbers[index])
                if slot == NULL or not slot.acked:
                    continue  # code that ran meanwhile has drained the slot
                self.size -= slot.size
                stored += 1
                if <PyObject *> latest != slot.subject:
                    latest = <object> slot.subject
                    answered[latest] = None
                self.settle(numbers[index], PyList_GetItem(acks, index))
            trim(&self.ring)
            return start + taken, stored
        finally:
            for index in range(taken):
                slot = find(&self.ring, numbers[index])
                if slot != NULL:
                    slot.acked = False
            free(numbers)

    cdef unsigned long long acked(self, PyObject *frame, Py_ssize_t *text) except? 0:
        """Mark the publish that a frame acks, and return its number, or 0 if the frame is not an ordinary ack."""
        cdef unsigned long long number = number_of(PyTuple_GetItem(frame, REPLY), self.prefix_)
        cdef Slot *slot = find(&self.ring, number)
        cdef PyObject *payload
        cdef Py_ssize_t length
        if slot == NULL or slot.acked:
            return 0
        payload = PyTuple_GetItem(frame, PAYLOAD)
        length = PyBytes_Size(payload)
        if not is_ordinary_ack(<Text> PyBytes_AsString(payload), length):
            return 0
        slot.acked = True
        text[0] += length + 1
        return number

    cdef int settle(self, unsigned long long number, PyObject *ack) except -1:
        """Free the slot of a publish, and set the ack as the result of its future, unless the future is done."""
        cdef PyObject *ticket = find(&self.ring, number).ticket
        cdef object kept = <object> ticket
        remove(&self.ring, number)
        cdef PyObject *nothing = PyObject_CallMethodObjArgs(ticket, <PyObject *> SET_RESULT, ack, NULL)
        if nothing != NULL:
            Py_DECREF(nothing)
            return 0
        if not PyErr_ExceptionMatches(<PyObject *> self.done_error):
            return -1  # the exception is set
        PyErr_Clear()
        return 0

    def drain(self):
        publishes = []
        cdef Slot *slot
        cdef unsigned long long number
        while self.ring.count:  # making a tuple may collect garbage, and so run code that publishes
            number = self.ring.first
            slot = find(&self.ring, number)
            publishes.append((
                self.prefix_ + b"%d" % number, <object> slot.ticket, <object> slot.subject,
                <object> slot.header, <object> slot.payload, slot.size, number, slot.deadline, slot.due,
                slot.repeatable != 0,
            ))
            remove(&self.ring, number)
        clear(&self.ring)
        return publishes
