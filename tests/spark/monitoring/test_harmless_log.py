"""A log that nothing can be harmed by."""

from __future__ import annotations

import logging

import pytest

from jsclient.spark.monitoring.harmless_log import HarmlessLog


class BrokenHandler(logging.Handler):
    def emit(self, record):
        raise RuntimeError("the handler is broken")


@pytest.fixture
def broken():
    logger, handler = logging.getLogger("jsclient.spark.progress"), BrokenHandler()
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


def test_handler_that_raises_is_printed_once(broken, capsys):
    log = HarmlessLog()
    for _ in range(3):
        log.write(logging.WARNING, "%d rows", 3)
        log.warn_once("an event was not counted", KeyError("id"))
    assert capsys.readouterr().err.count("RuntimeError: the handler is broken") == 1


def test_error_is_logged_once_for_each_text_and_type(caplog):
    log = HarmlessLog()
    for error in (KeyError("id"), KeyError("runId"), ValueError("x")):
        log.warn_once("an event was not counted", error)
    log.warn_once("another", KeyError("id"))
    assert [(one.levelname, one.exc_info[0], one.getMessage()) for one in caplog.records] == [
        ("WARNING", KeyError, "an event was not counted; later errors like this are not logged"),
        ("WARNING", ValueError, "an event was not counted; later errors like this are not logged"),
        ("WARNING", KeyError, "another; later errors like this are not logged"),
    ]
