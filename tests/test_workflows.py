"""The workflows of a hosted repository call sessions that exist, on the Pythons and servers that are supported."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = {
    path.stem: path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").glob("*.yml")
}
NOXFILE = (ROOT / "noxfile.py").read_text(encoding="utf-8")


def sessions() -> set[str]:
    functions = re.findall(r"@nox\.session\([^)]*\)\ndef (\w+)\(", NOXFILE)
    names = re.findall(r'@nox\.session\(name="([\w.-]+)"', NOXFILE)
    return {*functions, *names, "tests-${{"}


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_sessions_exist(name):
    called = set(re.findall(r"noxfile\.py ([\w.-]+(?:\$\{\{)?)", WORKFLOWS[name]))
    assert called <= sessions()
    assert called or name == "release" or ".ci/run" in WORKFLOWS[name]


def test_pythons_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert re.findall(r'"(3\.\d+)"', re.search(r"python: \[(.*)\]", WORKFLOWS["check"])[1]) == supported
    assert re.findall(r"^ +(3\.\d+)$", WORKFLOWS["full"], re.MULTILINE) == supported


def test_servers_are_those_of_the_session_versions():
    matrix = re.search(r"server: \[(.*)\]", WORKFLOWS["check"])[1]
    assert set(re.findall(r'"([\d.]+)"', matrix)) == set(re.findall(r'"--server-version=([\d.]+)"', NOXFILE))


def test_every_upload_waits_for_the_tests_of_the_packages():
    upload = WORKFLOWS["release"].split("\n  upload:\n")[1]
    assert "needs: [packages, wheels]" in upload
    assert "noxfile.py release" in WORKFLOWS["release"]
