"""What the listener does about events that it cannot read, and handlers of the log that raise: the query continues."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace

import pytest

from integration.kit.judge.waiting import eventually
from jsclient.spark.monitoring import lag
from jsclient.spark.monitoring.figures import Unread
from jsclient.spark.monitoring.lag import LagWatch
from jsclient.spark.monitoring.progress import LogPosition
from jsclient.tables.server_options import ServerOptions

CREATED = "2026-01-31T12:00:00+00:00"


def progress(**more):
    source = {
        "endOffset": {"seq": 20, "created": CREATED},
        "latestOffset": {"stream": "ORDERS"},
        "numInputRows": 3,
    }
    options = {"id": "i", "runId": "r", "batchId": 1, "name": "copy", "sources": [source], **more}
    return SimpleNamespace(progress=options)


@pytest.fixture
def listener():
    from jsclient.spark import JetStreamListener

    return JetStreamListener(log_every=0)


@pytest.fixture
def broken_handler():
    class Broken(logging.Handler):
        def emit(self, record):
            raise RuntimeError("the handler is broken")

    logger, handler = logging.getLogger("jsclient.spark.progress"), Broken(logging.INFO)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def test_one_warning_for_progress_of_another_form(listener, caplog):
    for _ in range(3):
        listener.onQueryProgress(SimpleNamespace(progress={"sources": []}))
    listener.onQueryProgress(SimpleNamespace(progress=None))
    listener.onQueryProgress(progress())
    warnings = [one for one in caplog.records if "an event of a query was not counted" in one.getMessage()]
    assert [(one.levelname, one.exc_info[0]) for one in warnings] == [
        ("WARNING", KeyError),
        ("WARNING", AttributeError),
    ]
    assert 'rows_total{query="copy",query_id="i",source="0",stream="ORDERS"} 3\n' in listener.prometheus()


def test_handler_that_raises(listener, broken_handler, capsys):
    listener.onQueryStarted(SimpleNamespace(id="i", runId="r", name="copy"))
    listener.onQueryProgress(progress())
    listener.onQueryProgress(progress(batchId=2))
    assert 'stream="ORDERS"} 6\n' in listener.prometheus()
    listener.onQueryTerminated(SimpleNamespace(id="i", runId="r", exception="as the test wants it"))
    assert 'query_up{query="copy",query_id="i"} 0\n' in listener.prometheus()
    listener.onQueryProgress(SimpleNamespace(progress=None))
    assert capsys.readouterr().err.count("RuntimeError: the handler is broken") == 1


async def test_watch_outlives_errors(server, js, stream, broken_handler, monkeypatch):
    """Of one place, and of the log."""
    answers = []
    options = ServerOptions.of(server.url)
    positions = {"good": LogPosition("A", "", 0), "bad": LogPosition("B", "", 0)}
    watch = LagWatch(options, 0.01, lambda: positions, lambda key, _, unread: answers.append((key, unread)))

    async def answer(js, position):
        if position.stream == "B":
            raise KeyError("as the test wants it")
        return Unread(0, 0.0)

    monkeypatch.setattr(lag, "unread_after", answer)
    watch.start_thread()
    await eventually(lambda: len(answers) > 5)
    assert {*answers} == {("good", Unread(0, 0.0)), ("bad", None)}
    await asyncio.to_thread(watch.close)
