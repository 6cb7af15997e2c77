"""Arguments: what is refused, what is asked for, what is missing."""

from __future__ import annotations

import pytest

import jsclient
from jsclient._runtime.connection.speedups import chosen
from jsclient.cli import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["doctor", "S"], "need --server"),
        (["doctor", "--json"], "need --server"),
        (["dance"], "invalid choice"),
        (["spark"], "required: action"),
        (["spark", "offsets"], "required: CHECKPOINT"),
    ],
)
def test_wrong_arguments_refused_with_code_2(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_without_a_command_the_help_is_printed(capsys):
    assert main([]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: jsclient")
    assert "doctor" in text


def test_doctor_without_server_says_so(capsys):
    assert main(["doctor", "--server", "nats://127.0.0.1:1"]) == 1
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 2
    assert captured.err.startswith("jsclient doctor: ")
    assert "nats://127.0.0.1:1" in captured.err


def test_doctor_refuses_unknown_options(capsys):
    assert main(["doctor", "--server", "nats://127.0.0.1:1", "--option", "dance=yes"]) == 2
    assert "dance" in capsys.readouterr().err


def test_the_version_is_reported(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"jsclient {jsclient.__version__}\n"


def test_doctor_names_the_reader(monkeypatch, capsys):
    monkeypatch.setenv("JSCLIENT_PURE", "1")
    chosen.cache_clear()
    try:
        assert main(["doctor"]) == 0
    finally:
        chosen.cache_clear()
    versions, reader = capsys.readouterr().out.splitlines()
    assert versions.startswith(f"jsclient {jsclient.__version__}, nats-py 2.")
    assert reader == "reader: Python (JSCLIENT_PURE is set)"
