"""Connections for synchronous code. A process has one event loop in a thread, and one connection for equal options.

Spark calls sources, sinks and handlers from ordinary threads. It reuses its Python workers, so a connection is kept for
the next task. A lost connection reconnects automatically.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from .._runtime.context import Context
from .._runtime.retry import is_transient
from ..client import JetStream, connect
from ..errors import AuthenticationError, ConnectError, JetStreamError
from .server_options import ServerOptions
from .spark_files import distributed_files

__all__ = ["Session", "context_of", "held", "session"]

T = TypeVar("T")


class Session:
    """A `JetStream` and its event loop. Returned by `session`.

    Attributes:
        js: The connection. Only coroutines on the loop may use it, see `run`.
    """

    def __init__(self, js: JetStream, loop: asyncio.AbstractEventLoop, servers: Sequence[str]) -> None:
        self.js = js
        self.loop = loop
        self._servers = servers

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result. An interrupt of the caller cancels the coroutine.

        A transient error gets a note with the servers, which tracebacks show.
        """
        future = self.start(work)
        try:
            return future.result()
        except BaseException as error:
            if isinstance(error, JetStreamError) and is_transient(error):
                error.add_note(f"servers: {', '.join(self._servers)}")
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop in the background. Returns a future for its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def end(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine that releases a resource, and wait for its result.

        Garbage collection may call this in the thread of the loop, which cannot wait for itself, or after the loop was
        closed. In these cases the method does not wait.
        """
        running = None
        with contextlib.suppress(RuntimeError):
            running = asyncio.get_running_loop()
        if self.loop.is_closed():
            work.close()
        elif running is self.loop:
            self.start(work)
        else:
            self.run(work)


class _LoopThread:
    """The event loop of this process and its connections."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.lock = threading.Lock()
        self.sessions: dict[ServerOptions, Session] = {}
        self.holders: Counter[ServerOptions] = Counter()
        self._thread = threading.Thread(target=self._run_loop, name="jsclient-spark", daemon=True)
        self._thread.start()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def get(self, options: ServerOptions) -> Session:
        with self.lock:
            session = self.sessions.get(options)
            if session is not None and not session.js.is_closed:
                return session
            future = asyncio.run_coroutine_threadsafe(_open(options), self.loop)
            try:
                js = future.result()
            except JetStreamError as error:
                # Drop the cause, because the text has all the information, and Spark would print the whole chain of
                # errors.
                raise error.with_traceback(None) from None
            self.sessions[options] = opened = Session(js, self.loop, options.servers)
            return opened

    def hold(self, options: ServerOptions) -> None:
        with self.lock:
            self.holders[options] += 1

    def release(self, options: ServerOptions) -> None:
        with self.lock:
            self.holders[options] -= 1
            last = None if self.holders[options] else self.sessions.pop(options, None)
        if last is not None:
            last.end(last.js.close())

    def close(self) -> None:
        with self.lock:
            sessions, self.sessions = list(self.sessions.values()), {}
        for session in sessions:
            with contextlib.suppress(Exception):
                session.start(session.js.close()).result(timeout=2.0)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=2.0)
        if not self._thread.is_alive():
            self.loop.close()


_loop_threads: dict[int, _LoopThread] = {}  # by process id, since threads do not survive a fork
_starting = threading.Lock()


def _loop_thread() -> _LoopThread:
    with _starting:
        thread = _loop_threads.get(os.getpid())
        if thread is None:
            _loop_threads.clear()
            thread = _loop_threads[os.getpid()] = _LoopThread()
            atexit.register(thread.close)
            if _is_worker():
                # Spark's workers run a full garbage collection after every task. Freeze the objects of the imported
                # modules, because scanning them would take 50 ms each time.
                gc.collect()
                gc.freeze()
        return thread


def _is_worker() -> bool:
    """Return whether this is a Python worker, which Spark has forked to run tasks."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name == "pyspark.daemon"


async def _open(options: ServerOptions) -> JetStream:
    try:
        return await connect(**options.arguments(distributed_files))
    except AuthenticationError:
        raise
    except ConnectError as error:
        # A query sets options instead of calling connect(), so name the option that corresponds to the argument
        # ``wait``.
        text = str(error).replace("connect(..., wait=30)", "option 'nats.wait' = '30'")
        raise ConnectError(text) from error.__cause__


def session(options: ServerOptions) -> Session:
    """Return the connection of this process for these options.

    The connection is opened on first use and kept for later calls.

    Raises:
        ConnectError, AuthenticationError: See `jsclient.connect`.
        ConfigError: A file or an environment variable does not exist.
    """
    return _loop_thread().get(options)


@contextlib.contextmanager
def held(options: ServerOptions) -> Iterator[None]:
    """Keep the connection for these options open during the block. Then close it, unless another block keeps it."""
    thread = _loop_thread()
    thread.hold(options)
    try:
        yield
    finally:
        thread.release(options)


def context_of(js: JetStream) -> Context:
    """Return the `Context` of a `JetStream`."""
    return js._context  # noqa: SLF001  internal to this package
