"""The directory of the files that Spark distributes, as far as a process knows it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from jsclient.tables.spark_files import distributed_files


def install(monkeypatch, root) -> None:
    files = SimpleNamespace(getRootDirectory=root)
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(SparkFiles=files))


@pytest.mark.parametrize("name", ["", "streaming_job"])
def test_directory(monkeypatch, tmp_path, name):
    """The process that plans a stream gets a directory below it."""
    install(monkeypatch, lambda: str(tmp_path / name))
    assert distributed_files() == tmp_path


def test_relative_directory(monkeypatch):
    install(monkeypatch, lambda: ".")
    assert distributed_files() == Path.cwd()


def test_no_application(monkeypatch):
    def none():
        raise AssertionError

    install(monkeypatch, none)
    assert distributed_files() is None


def test_process_without_spark(monkeypatch):
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    assert distributed_files() is None
    assert "pyspark" not in sys.modules
