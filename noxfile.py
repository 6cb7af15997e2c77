"""The sessions of the project, and a way to run them that needs nothing but Python.

    python3 noxfile.py                          lint, types, tests
    python3 noxfile.py check                    what has to pass: lint, types, tests, integration, spark, docs
    python3 noxfile.py demo                     the demonstration
    python3 noxfile.py tests -- -k heartbeat    what comes after -- goes to the session
    python3 noxfile.py --list                   all sessions; every option of nox works

Run like this, the file makes a virtual environment `.venv` with nox in it and goes on there. Where nox is
installed, `nox -s check` does the same.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent
NOX = "nox>=2025.2.9"


def bootstrap(arguments: list[str]) -> int:
    """Run nox with ``arguments``, from `.venv`, which is made or mended first where that is needed."""
    if sys.version_info < (3, 11):  # noqa: UP036 - who runs this file may have any Python
        return complain(f"jsclient needs Python 3.11 or newer; this is {sys.version.split()[0]}")
    environment = ROOT / ".venv"
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    if not runs(python, "import nox"):
        print("Making .venv, with nox in it", file=sys.stderr, flush=True)
        if not runs(python, "import pip"):
            if importlib.util.find_spec("ensurepip") is None:
                return complain(
                    "this Python cannot make virtual environments. Debian, Ubuntu: install python3-venv"
                )
            clear = [] if runs(python, "pass") else ["--clear"]
            if code := subprocess.call([sys.executable, "-m", "venv", *clear, environment]):
                return code
        if code := subprocess.call([python, "-m", "pip", "install", "--quiet", NOX]):
            return code
    if arguments and not any(argument.startswith("-") for argument in until_dashes(arguments)):
        arguments = ["--session", *arguments]
    command = [str(python), "-m", "nox", "--noxfile", __file__, *arguments]
    if os.name != "nt":  # where exec gives the prompt back at once
        os.execv(python, command)
    return subprocess.call(command)


def until_dashes(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def runs(python: Path, code: str) -> bool:
    """Whether ``python`` is there and can do this."""
    try:
        return subprocess.call([python, "-c", code], stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def complain(message: str) -> int:
    print(message, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(bootstrap(sys.argv[1:]))

import nox  # noqa: E402 - not there until the bootstrap is done

nox.needs_version = NOX.removeprefix("nox")
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["lint", "types", "tests"]

PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")


def group(name: str) -> list[str]:
    """The requirements of a dependency group."""
    return nox.project.dependency_groups(PROJECT, name)


REPORTS = ROOT / ".nox" / "reports"


def pytest(session: nox.Session, *arguments: str) -> None:
    """Run pytest, and keep what it says of failures for `recap`."""
    report = REPORTS / f"{session.name}-{len(list(REPORTS.glob(f'{session.name}-*'))) + 1}.xml"
    session.run("pytest", f"--junit-xml={report}", *arguments, *session.posargs)


@nox.session(reuse_venv=True)
def lint(session: nox.Session) -> None:
    """Style and format."""
    session.install(*group("lint"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session(reuse_venv=True)
def types(session: nox.Session) -> None:
    """Types, and who may import whom."""
    session.install("--editable", ".[cli]", *group("types"))
    session.run("mypy")
    session.run("lint-imports")


@nox.session(reuse_venv=True)
def tests(session: nox.Session) -> None:
    """The tests that need no server."""
    session.install("--editable", ".", *group("tests"))
    pytest(session, "tests", "-n", "auto")


# The same on a given Python; skipped where that is not installed.
for version in nox.project.python_versions(PROJECT):
    nox.session(tests.func, name=f"tests-{version}", python=version, reuse_venv=True)


# Most of these tests wait, for a heartbeat or a timeout: even two cores have time for four at once. Each process has a
# server of its own, so where one is named for all of them, there is one process.
SIDE_BY_SIDE = ("-n", "0" if "JSCLIENT_TEST_SERVER" in os.environ else "4", "--dist", "worksteal")


@nox.session(reuse_venv=True)
def integration(session: nox.Session) -> None:
    """The tests against a real nats-server. Options after --: --server-version=2.10.25, for one."""
    session.install("--editable", ".", *group("integration"))
    pytest(session, "integration", "--ignore=integration/spark", *SIDE_BY_SIDE)


@nox.session(reuse_venv=True)
def spark(session: nox.Session) -> None:
    """The tests of jsclient.spark, on the newest PySpark; they need Java 17. One session, beside it what needs none."""
    session.install("--editable", ".[spark]", *group("spark"))
    pytest(session, "integration/spark", "-n", "2", "--dist", "loadgroup")


@nox.session(name="spark-4.2", reuse_venv=True)
def spark_oldest(session: nox.Session) -> None:
    """The part of them that shows what depends on Spark, on the oldest PySpark that will do."""
    session.install("--editable", ".[spark]", *group("spark"), "pyspark==4.2.*")
    pytest(session, "integration/spark/test_compat.py")


# What the server's version and the form of its acks make no difference to.
ANY_SERVER = (
    "faults",
    "kit",
    "spark",
    "docs/test_benchmarks.py",
    "connection/test_cancellation.py",
    "cli/test_demo.py",
    "docs/test_examples.py",
    "docs/test_guarantees.py",
    "consumers/test_malformed_deliveries.py",
    "connection/test_malformed_protocol.py",
    "kit/test_kit.py",
    "connection/test_leaks.py",
    "docs/test_pages.py",
    "connection/test_nats_client.py",
    "connection/test_identity.py",
    "connection/test_names.py",
    "connection/test_secrets.py",
    "connection/test_tls.py",
    "server/test_server.py",
)

# Loops over races, and long runs, which take minutes: the same on every server, run on the newest.
LONG = (
    "faults/test_cluster.py",
    "publishing/test_cluster.py",
    "consumers/test_conformance_acks.py",
    "consumers/ordered/test_conformance.py",
    "consumers/pull/test_conformance.py",
    "consumers/test_conformance_status.py",
    "topics/epochs/test_stress.py",
    "publishing/test_fast_ingest.py",
    "topics/notifiers/test_faults.py",
    "topics/notifiers/test_wire.py",
    "topics/notifiers/test_sites.py",
    "topics/test_log_reader_faults.py",
    "streams/test_paging.py",
    "consumers/ordered/test_consumer_faults.py",
    "publishing/test_publisher.py",
    "topics/test_cluster.py",
    "consumers/worker/test_worker.py",
    "consumers/worker/test_faults.py",
)

# Readers of topics ack nothing: only what a delivery says of itself is read, and that is shown elsewhere.
NO_ACKS = (
    "topics/epochs",
    "topics/test_event_history.py",
    "topics/notifiers",
    "topics/test_log_reader*.py",
    "peers",
)


@nox.session(reuse_venv=True)
def versions(session: nox.Session) -> None:
    """What goes over the wire, against the oldest and a middle nats-server, and with acks in their new form."""
    session.install("--editable", ".", *group("integration"))
    ignored = [f"--ignore=integration/{name}" for name in (*ANY_SERVER, *LONG)]
    for form in ("--ack-v2", "--server-version=2.12.8", "--server-version=2.10.25"):
        other = [f"--ignore-glob=integration/{name}" for name in NO_ACKS] if form == "--ack-v2" else []
        pytest(session, "integration", "-q", "-rfE", form, *SIDE_BY_SIDE, *ignored, *other)


@nox.session(reuse_venv=True)
def coverage(session: nox.Session) -> None:
    """What all tests together do not reach."""
    session.install("--editable", ".", *group("integration"))
    session.run("coverage", "erase")
    session.run("coverage", "run", "-m", "pytest", "tests", *session.posargs)
    session.run(
        "coverage", "run", "-m", "pytest", "integration", "--ignore=integration/spark", *session.posargs
    )
    session.run("coverage", "combine")
    session.run("coverage", "report")


@nox.session(reuse_venv=True)
def docs(session: nox.Session) -> None:
    """The documentation, and its examples."""
    session.install("--editable", ".[server]", *group("docs"))
    # -E: what an earlier build has read would not be warned of again.
    sphinx = ["sphinx-build", "-q", "-E", "-n", "-W", "--keep-going"]
    session.run(*sphinx, "-b", "html", "docs", "docs/_build/html")
    session.run(*sphinx, "-b", "doctest", "docs", "docs/_build/doctest")


@nox.session(reuse_venv=True)
def bench(session: nox.Session) -> None:
    """The benchmarks, against other clients. Options after --: --help says which."""
    session.install("--editable", ".[server]", *group("bench"))
    session.run("python", "-m", "benchmarks", *session.posargs)


for version in nox.project.python_versions(PROJECT):
    nox.session(bench.func, name=f"bench-{version}", python=version, reuse_venv=True)


@nox.session(name="bench-spark", reuse_venv=True)
def bench_spark(session: nox.Session) -> None:
    """The benchmarks in Spark, beside nats-py. Options after --: --help says which."""
    session.install("--editable", ".[server,spark]")
    session.run("python", "-m", "benchmarks.spark", *session.posargs)


@nox.session(name="bench-topics", reuse_venv=True)
def bench_topics(session: nox.Session) -> None:
    """What topics cost, beside nats-py, in about five minutes. Options after --: --help says which."""
    session.install("--editable", ".[server]")
    session.run("python", "-m", "benchmarks.topics", *session.posargs)


@nox.session(reuse_venv=True)
def demo(session: nox.Session) -> None:
    """The demonstration: `jsclient demo`. Ctrl-C ends it."""
    session.install("--editable", ".[demo]")
    # After Ctrl-C the demonstration stops what it started: that may take longer than nox would wait.
    session.run("jsclient", "demo", *session.posargs, interrupt_timeout=20.0, terminate_timeout=10.0)


@nox.session(venv_backend="none")
def check(session: nox.Session) -> None:
    """Everything that has to pass, in order."""
    shutil.rmtree(REPORTS, ignore_errors=True)
    for name in ("lint", "types", "tests", "integration", "versions", "spark", "spark-4.2", "docs", "recap"):
        session.notify(name)


@nox.session(venv_backend="none")
def recap(session: nox.Session) -> None:
    """The failures of all sessions again: where only the end of a long log is kept, they are in it."""
    for report in sorted(REPORTS.glob("*.xml")):
        for case in ElementTree.parse(report).iter("testcase"):
            for failure in (*case.iter("failure"), *case.iter("error")):
                session.log(f"{report.stem}: {case.get('classname')}::{case.get('name')}")
                text = failure.text or failure.get("message") or ""
                print("\n".join(text.splitlines()[-60:]), flush=True)
