"""The files named by options of the connection: the directories that are searched, and the errors if none has them."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from jsclient.errors import ConfigError
from jsclient.tables.server_options import ServerOptions
from jsclient.tables.spark_files import distributed_files


def seed_file(name):
    options = ServerOptions.of({"servers": "nats://x", "nkeySeedFile": name})
    return options.arguments(distributed_files)["nkeys_seed"]


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """The working directory, and the directory of Spark's files."""
    here, shared = tmp_path / "here", tmp_path / "shared"
    here.mkdir()
    shared.mkdir()
    monkeypatch.chdir(here)
    pyspark = ModuleType("pyspark")
    pyspark.SparkFiles = type("SparkFiles", (), {"getRootDirectory": staticmethod(lambda: str(shared))})
    monkeypatch.setitem(sys.modules, "pyspark", pyspark)
    return here, shared


def test_file_in_working_directory_first(folders):
    for folder in folders:
        (folder / "app.nk").touch()
    assert seed_file("app.nk") == "app.nk"


def test_file_that_spark_distributed(folders):
    _, shared = folders
    (shared / "app.nk").touch()
    assert seed_file("app.nk") == str(shared / "app.nk")


def test_process_that_plans_a_stream(folders, monkeypatch):
    """Spark names a directory below the directory that has the files."""
    _, shared = folders
    (shared / "app.nk").touch()
    below = str(shared / "streaming_job")
    monkeypatch.setattr(sys.modules["pyspark"].SparkFiles, "getRootDirectory", lambda: below)
    assert seed_file("app.nk") == str(shared / "app.nk")


def test_relative_file_in_neither_folder(folders):
    here, shared = folders
    with pytest.raises(ConfigError, match=r"'nkeySeedFile': no file 'app.nk'") as raised:
        seed_file("app.nk")
    assert repr(str(here)) in str(raised.value)
    assert repr(str(shared)) in str(raised.value)


def test_absolute_file_is_nowhere_else(folders, tmp_path):
    _, shared = folders
    (shared / "app.nk").touch()
    with pytest.raises(ConfigError, match=r"no file '.*app.nk' on .*; pass the file to spark-submit"):
        seed_file(str(tmp_path / "app.nk"))


@pytest.mark.parametrize("error", [AssertionError, ConnectionError], ids=["no session", "session stopped"])
def test_no_application_of_spark(folders, monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(sys.modules["pyspark"].SparkFiles, "getRootDirectory", fail)
    with pytest.raises(ConfigError, match=r"no file 'app.nk'"):
        seed_file("app.nk")


def test_options_of_client_passed_on():
    options = {
        "tlsHostname": "nats.example.com",
        "tlshandshakefirst": "true",
        "nats.pinginterval": "5",
        "nats.reconnectMaxWait": "0.5",
        "nats.name": "billing",
    }
    arguments = ServerOptions.of({"servers": "nats://x", "timeout": "2", **options}).arguments()
    assert arguments == {
        "servers": ["nats://x"],
        "prefix": "$JS.API",
        "inbox_prefix": "_INBOX",
        "timeout": 2.0,
        "connect_timeout": 2.0,
        "tls_hostname": "nats.example.com",
        "tls_handshake_first": True,
        "ping_interval": 5.0,
        "reconnect_max_wait": 0.5,
        "name": "billing",
    }


def test_unknown_option_of_client_refused_with_those_there_are():
    with pytest.raises(ConfigError) as raised:
        ServerOptions.of({"servers": "nats://x", "nats.maxReconnectAttempts": "3"})
    assert str(raised.value) == (
        "the connection has no option 'nats.maxReconnectAttempts': options of the client are nats.connectTimeout, "
        "nats.name, nats.pingInterval, nats.reconnectMaxWait, nats.reconnectTimeWait, nats.wait"
    )


def test_option_of_client_with_bad_value_refused():
    with pytest.raises(ConfigError, match=r"option 'nats.pingInterval' is '0': a number of seconds over 0"):
        ServerOptions.of({"servers": "nats://x", "nats.pingInterval": "0"})
