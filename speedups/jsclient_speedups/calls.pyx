# cython: language_level=3, boundscheck=False, wraparound=False
"""Call the callback of a push subscription with the messages that wait, one after another."""

cdef extern from "Python.h":
    ctypedef struct PyObject
    int PyIter_Send(object, object, PyObject **) except -1  # 1 if the coroutine waits, 0 if it has returned
    object PyObject_CallFunctionObjArgs(object, ...)
    object PyObject_CallNoArgs(object)
    Py_ssize_t PyObject_Size(object) except -1
    PyObject *Py_TYPE(object)
    void Py_DECREF(PyObject *)


cdef class CallbackRun:
    """Caller of a coroutine function, which runs each coroutine up to the point where it waits.

    `PushBuffer._call_run` in `jsclient/consumers/push/buffer.py` is the specification.

    Attributes:
        message: The message of the latest call.
        remaining: Number of messages, of the ``count`` messages of `call_run`, that were not taken.
    """

    cdef object _front, _take_frame, _make_message, _channel, _callback, _coroutine_type
    cdef readonly object message
    cdef readonly Py_ssize_t remaining

    def __init__(self, front, make_message, channel, callback, coroutine_type):
        self._front, self._take_frame = front, front.popleft
        self._make_message, self._channel = make_message, channel
        self._callback, self._coroutine_type = callback, coroutine_type
        self.message = None
        self.remaining = 0

    def call_run(self, Py_ssize_t count):
        """Take at most ``count`` messages, and call the callback with each message.

        Returns:
            None after the last message. ``(coroutine, waited)`` if a coroutine waits, where ``waited`` is the object
            that it has yielded. ``(awaitable,)`` if the callback has returned another object, which the caller has to
            await.

        Raises:
            BaseException: The callback has raised it. The next call continues with the next message.
        """
        self.remaining = count
        cdef object frame, coroutine
        cdef PyObject *value
        while self.remaining > 0 and PyObject_Size(self._front) > 0:
            self.remaining -= 1
            frame = PyObject_CallNoArgs(self._take_frame)
            self.message = PyObject_CallFunctionObjArgs(
                self._make_message, <PyObject *> frame, <PyObject *> self._channel, NULL
            )
            coroutine = PyObject_CallFunctionObjArgs(self._callback, <PyObject *> self.message, NULL)
            if Py_TYPE(coroutine) != <PyObject *> self._coroutine_type:
                return (coroutine,)
            if PyIter_Send(coroutine, None, &value):
                waited = <object> value
                Py_DECREF(value)
                return coroutine, waited
            Py_DECREF(value)
        return None
