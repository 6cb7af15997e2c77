# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""An array with a slot for each publish in flight. A slot's index is the publish's number modulo the array's size."""

from libc.stdlib cimport calloc, free
from libc.string cimport memset

cdef extern from "Python.h":
    void Py_INCREF(PyObject *)
    void Py_DECREF(PyObject *)

cdef enum:
    FIRST_CAPACITY = 64
    KEPT_CAPACITY = 1024  # maximum size of an array that is kept while no publish is in flight
    MAX_CAPACITY = 65536


cdef inline Slot *at(Ring *ring, unsigned long long number) noexcept nogil:
    return &ring.slots[number & <unsigned long long> (ring.capacity - 1)]


cdef Slot *find(Ring *ring, unsigned long long number) noexcept nogil:
    """Return the slot of a publish, or NULL if the publish has no slot."""
    if ring.count == 0 or number < ring.first or number >= ring.following:
        return NULL
    cdef Slot *slot = at(ring, number)
    return slot if slot.ticket != NULL else NULL


cdef Slot *reserve(Ring *ring, unsigned long long number) noexcept nogil:
    """Make room for the next publish, and return its slot.

    Returns NULL if there is no room, for example because a much older publish would require an array that is too large.
    """
    cdef unsigned long long span, other
    cdef Ring larger
    if ring.count == 0:
        ring.first = ring.following = number
    if number < ring.following:
        return NULL
    span = number - ring.first + 1
    if span > <unsigned long long> ring.capacity:
        if ring.count * 2 < ring.capacity or ring.capacity == MAX_CAPACITY:
            return NULL
        larger = ring[0]
        larger.capacity = ring.capacity * 2 if ring.capacity else FIRST_CAPACITY
        if span > <unsigned long long> larger.capacity:
            return NULL
        larger.slots = <Slot *> calloc(larger.capacity, sizeof(Slot))
        if larger.slots == NULL:
            return NULL
        for other in range(ring.first, ring.following):
            at(&larger, other)[0] = at(ring, other)[0]
        free(ring.slots)
        ring[0] = larger
    return at(ring, number)


cdef void fill(Ring *ring, unsigned long long number, Slot *content) noexcept:
    """Store a publish in the slot that `reserve` has returned."""
    Py_INCREF(content.ticket)
    Py_INCREF(content.subject)
    Py_INCREF(content.header)
    Py_INCREF(content.payload)
    at(ring, number)[0] = content[0]
    ring.following = number + 1
    ring.count += 1


cdef void remove(Ring *ring, unsigned long long number) noexcept:
    """Free the slot of a publish.

    The references are dropped last, because any code may run when the last reference to an object goes.
    """
    cdef Slot *slot = find(ring, number)
    if slot == NULL:
        return
    cdef Slot content = slot[0]
    memset(slot, 0, sizeof(Slot))
    ring.count -= 1
    while ring.count and at(ring, ring.first).ticket == NULL:
        ring.first += 1
    Py_DECREF(content.subject)
    Py_DECREF(content.header)
    Py_DECREF(content.payload)
    Py_DECREF(content.ticket)


cdef void trim(Ring *ring) noexcept nogil:
    """Free the memory of a large array that is empty."""
    if ring.count == 0 and ring.capacity > KEPT_CAPACITY:
        free(ring.slots)
        ring.slots, ring.capacity = NULL, 0


cdef void clear(Ring *ring) noexcept:
    """Free all slots and the array."""
    while ring.count:
        remove(ring, ring.first)
    free(ring.slots)
    ring.slots, ring.capacity = NULL, 0
