"""The sessions of the project, run with nothing but Python installed.

    python3 noxfile.py                          quick: lint, types and unit tests, under 3 minutes
    python3 noxfile.py smoke                    about 40 integration tests, under a minute
    python3 noxfile.py check                    everything a change has to pass, under 10 minutes
    python3 noxfile.py full                     check, and everything that takes longer
    python3 noxfile.py demo                     the demonstration
    python3 noxfile.py tests -- -k heartbeat    arguments after -- go to the session
    python3 noxfile.py --list                   all sessions; every option of nox works

The first run creates a virtual environment `.venv` with nox in it and continues there. With nox installed,
`nox -s check` does the same. Environments are created with uv if it can reach the package index, else with virtualenv
and pip.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent
NOX = "2026.8.17"  # runs sessions side by side


def bootstrap(arguments: list[str]) -> int:
    """Run nox with ``arguments`` from `.venv`, which is created or repaired first if necessary."""
    if sys.version_info < (3, 11):  # noqa: UP036 - any Python may run this file
        return complain(f"jsclient needs Python 3.11 or newer; this is {sys.version.split()[0]}")
    environment = ROOT / ".venv"
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    needed = tuple(map(int, NOX.split(".")))
    found = "tuple(int(part) for part in importlib.metadata.version('nox').split('.'))"
    if not runs(python, f"import importlib.metadata; assert {found} >= {needed}"):
        print("Creating .venv with nox", file=sys.stderr, flush=True)
        if not runs(python, "import pip"):
            if importlib.util.find_spec("ensurepip") is None:
                return complain(
                    "this Python cannot create virtual environments. Debian, Ubuntu: install python3-venv"
                )
            clear = [] if runs(python, "pass") else ["--clear"]
            if code := subprocess.call([sys.executable, "-m", "venv", *clear, environment]):
                return code
        if code := subprocess.call([python, "-m", "pip", "install", "--quiet", f"nox>={NOX}"]):
            return code
        install_uv(python)
    if arguments and not any(argument.startswith("-") for argument in until_dashes(arguments)):
        arguments = ["--session", *arguments]
    command = [str(python), "-m", "nox", "--noxfile", __file__, *arguments]
    if os.name != "nt":  # on Windows exec returns to the prompt at once
        os.execv(python, command)
    return subprocess.call(command)


def install_uv(python: Path) -> None:
    """Install uv, which nox prefers to pip; remove it if it cannot install packages here."""
    pip = [python, "-m", "pip"]
    config = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=False).stdout
    if re.search(r"\.(index-url|no-index)=", config):  # uv does not read pip's configuration
        return
    if not works([*pip, "install", "uv"]):
        return
    if not works([python, "-m", "uv", "pip", "install", "--dry-run", "--python", python, "hatchling"]):
        works([*pip, "uninstall", "--yes", "uv"])


def until_dashes(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def runs(python: Path, code: str) -> bool:
    """Whether ``python`` exists and runs ``code`` without an error."""
    return works([python, "-c", code])


def works(command: list[str | Path]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def complain(message: str) -> int:
    print(message, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(bootstrap(sys.argv[1:]))

import nox  # noqa: E402 - installed by the bootstrap

nox.needs_version = f">={NOX}"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["quick"]

PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
PYTHONS = nox.project.python_versions(PROJECT)
REPORTS = ROOT / ".nox" / "reports"

# Without bytecode each of some thirty processes of pytest rewrites all tests, for four seconds, and each program that
# tests start compiles jsclient. Where that is set, to keep folders of source clean, bytecode is kept elsewhere.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(ROOT / ".nox" / "pycache"))

# Most integration tests wait for a heartbeat or a timeout: two cores have time for eight processes. Each starts a
# server of its own. A server that is given is for one process.
SIDE_BY_SIDE = ("-n", "0" if "JSCLIENT_TEST_SERVER" in os.environ else "8", "--dist", "worksteal")
WITHOUT_SPARK = (
    "integration",
    *(f"--ignore=integration/{room}" for room in ("spark", "arrow", "interop")),
)
INTEROP = "integration/interop"
SPARK = ("integration/spark", "integration/arrow")
# The rooms whose tests depend on the version of the server and on its form of ack subjects.
ROOMS = ("buckets", "consumers", "core", "publishing", "streams", "topics", "peers")
WIRE = tuple(f"integration/{room}" for room in ROOMS)
# Tests of what depends on time, and of programs that take long. `coverage` would slow them too much.
TIMED = tuple(f"integration/{room}" for room in ("campaign", "docs", "examples", "faults"))
CORE = ("-m", "not full")
INTEROP_SERVERS = ((), ("--server-version=2.12.8",), ("--server-version=2.10.25",))  # the first is the newest


def group(name: str) -> list[str]:
    """The requirements of a dependency group."""
    return nox.project.dependency_groups(PROJECT, name)


def pytest(session: nox.Session, *arguments: str, command: tuple[str, ...] = ("pytest",)) -> None:
    """Run pytest and keep a report of its failures for `print_failures`."""
    report = REPORTS / f"{session.name}-{len(list(REPORTS.glob(f'{session.name}-*'))) + 1}.xml"
    session.run(*command, f"--junit-xml={report}", *arguments, *session.posargs)


@nox.session(reuse_venv=True)
def lint(session: nox.Session) -> None:
    """Style and format, and the form of the workflows."""
    session.install(*group("lint"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    for schema, pattern in (("workflows", "workflows/*.yml"), ("issue-forms", "ISSUE_TEMPLATE/[!c]*.yml")):
        files = sorted(map(str, Path(".github").glob(pattern)))
        session.run("check-jsonschema", "--builtin-schema", f"vendor.github-{schema}", *files)


@nox.session(reuse_venv=True)
def types(session: nox.Session) -> None:
    """Types, and which module may import which."""
    session.install("--editable", ".", *group("types"), *group("demo"))
    session.run("mypy")
    session.run("lint-imports")


@nox.session(name="public-types", reuse_venv=True)
def public_types(session: nox.Session) -> None:
    """Whether every public name has a type that all type checkers read alike, and what users' programs make of them."""
    session.install(".[spark,polars,ray,fsspec]", *group("public-types"), *group("types"))
    session.run("pyright", "--verifytypes", "jsclient", "--ignoreexternal")
    with tempfile.TemporaryDirectory() as folder:  # outside of the tree, whose settings would count
        shutil.copytree("tests/support/programs", folder, dirs_exist_ok=True)
        with session.chdir(folder):
            session.run("pyright", ".")
            session.run("mypy", "--strict", ".")


@nox.session(reuse_venv=True)
def tests(session: nox.Session) -> None:
    """The unit tests, which need no server."""
    session.install("--editable", ".", *group("tests"))
    if session.name != "tests":  # a session of `full`
        session.env["JSCLIENT_TEST_EXAMPLES"] = "all"
    pytest(session, "tests", "-n", "auto")


# The same on a given Python; skipped if that is not installed.
for version in PYTHONS:
    nox.session(tests.func, name=f"tests-{version}", python=version, reuse_venv=True)


@nox.session(reuse_venv=True)
def smoke(session: nox.Session) -> None:
    """About forty integration tests: one or two of each feature."""
    session.install("--editable", ".", *group("integration"))
    pytest(session, *WITHOUT_SPARK, "-n", "2", "-m", "smoke")


@nox.session(reuse_venv=True)
def integration(session: nox.Session) -> None:
    """The core of the tests against a nats-server. Options after --: --server-version=2.10.25, for example."""
    session.install("--editable", ".", *group("integration"))
    # Eight processes that start together would each rewrite the assertions of all tests, for nine seconds of CPU.
    session.run("pytest", *WITHOUT_SPARK, "--collect-only", "-q", silent=True, success_codes=range(6))
    pytest(session, *WITHOUT_SPARK, *SIDE_BY_SIDE, *CORE)


@nox.session(reuse_venv=True)
def uvloop(session: nox.Session) -> None:
    """The core of the tests against a nats-server, those of faults in full, with uvloop's event loop."""
    session.install("--editable", ".", *group("integration"))
    each(
        session,
        (*WITHOUT_SPARK, "--ignore=integration/faults", "--uvloop", *SIDE_BY_SIDE, *CORE),
        ("integration/faults", "--uvloop", *SIDE_BY_SIDE),
    )


@nox.session(reuse_venv=True)
def versions(session: nox.Session) -> None:
    """The wire, on the oldest and an intermediate nats-server, and with the second form of ack subjects."""
    session.install("--editable", ".", *group("integration"))
    each(
        session,
        *(
            (*WIRE, "-q", "-rfE", form, *SIDE_BY_SIDE, *CORE)
            for form in ("--ack-v2", "--server-version=2.12.8", "--server-version=2.10.25")
        ),
        *(
            ("integration/connection/test_handshakes.py", version, *SIDE_BY_SIDE)
            for version in ("--server-version=2.12.8", "--server-version=2.10.25")
        ),
    )


@nox.session(name="nats-py", reuse_venv=True)
def nats_py(session: nox.Session) -> None:
    """The tests of connections that nats-py has opened, on its oldest supported release and on the newest."""
    session.install("--editable", ".", *group("integration"))
    (lowest,) = (
        one.partition(">=")[2] for one in PROJECT["project"]["dependencies"] if one.startswith("nats-py")
    )
    for release in (f"=={lowest}.*", f">={lowest}"):
        session.install("--upgrade", f"nats-py{release}")
        each(session, (*WIRE, "integration/connection", "-m", "nats_py", *SIDE_BY_SIDE))


@nox.session(reuse_venv=True, python="3.13")
def interop(session: nox.Session) -> None:
    """Buckets, objects and services with clients for JavaScript (node and npm), Rust and Python, on three servers."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        missing = "node and npm are needed, for the JavaScript client: install the package nodejs"
        if os.environ.get("CI"):
            session.error(missing)
        session.skip(missing)
    session.install("--editable", ".", *group("interop"))
    # The lock file says which packages, with their checksums.
    session.run(npm, "ci", "--prefix", INTEROP, "--no-audit", "--no-fund", "--loglevel=error", external=True)
    each(session, *((INTEROP, *version) for version in INTEROP_SERVERS))


@nox.session(reuse_venv=True)
def spark(session: nox.Session) -> None:
    """The core of the tests of jsclient.spark on the newest PySpark, which need Java 17, and of jsclient.arrow."""
    session.install("--editable", ".[spark]", *group("spark"))
    session.run("python", "-m", "integration.kit.spark.bytecode")
    pytest(session, *SPARK, "-n", "2", "--dist", "loadgroup", *CORE)


@nox.session(name="spark-full", reuse_venv=True)
def spark_full(session: nox.Session) -> None:
    """All tests of jsclient.spark and jsclient.arrow, among them those that kill drivers, JVMs and executors."""
    session.install("--editable", ".[spark,ray]", *group("spark"), *group("kubernetes"))
    session.run("python", "-m", "integration.kit.spark.bytecode")
    pytest(session, *SPARK, "-n", "2", "--dist", "loadgroup")


@nox.session(name="spark-4.2", reuse_venv=True)
def spark_oldest(session: nox.Session) -> None:
    """The tests of what depends on Spark itself, on the oldest supported PySpark."""
    session.install("--editable", ".[spark]", *group("spark"), "pyspark==4.2.*")
    pytest(session, "integration/spark/test_compat.py")


def install_speedups(session: nox.Session, *, optional: bool = False) -> None:
    """Build the wheel of jsclient-speedups, and install it. ``optional``: skip the session where that is impossible."""
    compiler = shutil.which((os.environ.get("CC") or "cc").split()[0])
    if compiler is None or not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        missing = "speedups/ cannot be built: install a C compiler, such as gcc, and the headers of Python"
        if optional and not os.environ.get("CI"):
            session.skip(missing)
        session.error(missing)
    session.install("pip>=23")  # not in environments that uv creates
    folder = Path(session.create_tmp())
    source, wheels = folder / "source", folder / "wheels"
    shutil.rmtree(source, ignore_errors=True)
    shutil.rmtree(wheels, ignore_errors=True)
    shutil.copytree("speedups", source)  # the build leaves files there
    session.run(
        "python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), str(source)
    )
    (wheel,) = wheels.iterdir()
    if "-cp311-abi3-" not in wheel.name:
        session.error(f"{wheel.name} is not for the stable ABI: cp311-abi3 is needed")
    session.install("--no-deps", "--force-reinstall", str(wheel))


@nox.session(reuse_venv=True)
def speedups(session: nox.Session) -> None:
    """The compiled reader: built, compared with the Python reader, and the tests of what reads most with it.

    With options after --, the comparison alone: --streams=10000000 --seed=7.
    """
    parts = ("pull/test_conformance.py", "ordered/test_conformance.py", "ordered/test_subscription.py")
    readers = (*parts, "test_subscribe_forms.py", "test_flow_control.py")
    wire = (*(f"integration/consumers/{one}" for one in readers), "integration/publishing/test_publisher.py")
    with_speedups(session, "--streams=50000", wire=wire, optional=True)


@nox.session(name="speedups-full", reuse_venv=True)
def speedups_full(session: nox.Session) -> None:
    """The same with a longer comparison, and the core of the tests of all that reads from a connection."""
    rooms = (*WIRE, "integration/connection", "integration/faults")
    with_speedups(session, "--streams=1000000", wire=rooms)
    if not session.posargs:
        session.env["JSCLIENT_PURE"] = "1"  # installed, and not used
        pytest(session, "tests/runtime", "-n", "2")


def with_speedups(
    session: nox.Session, streams: str, *, wire: tuple[str, ...], optional: bool = False
) -> None:
    """Build and install jsclient-speedups, and run its tests, and those of jsclient with it."""
    session.install("--editable", ".", *group("integration"))
    install_speedups(session, optional=optional)
    session.env["JSCLIENT_PURE"] = "0"
    pytest(session, "speedups/tests", "-n", "2", streams)
    if session.posargs:
        return
    units = ("tests/runtime", "tests/publishing")
    each(session, (*units, "-n", "2"), (*wire, *SIDE_BY_SIDE, *CORE))


@nox.session(reuse_venv=True)
def faults(session: nox.Session) -> None:
    """All tests of faults and of long programs: the campaign, the examples and the programs of the documentation."""
    session.install("--editable", ".[polars]", *group("integration"), *group("arrow"))
    pytest(session, *TIMED, *SIDE_BY_SIDE)


@nox.session(reuse_venv=True)
def coverage(session: nox.Session) -> None:
    """All tests except Spark's and those of `faults`, and the code that they do not reach."""
    session.install("--editable", ".[polars]", *group("integration"), *group("arrow"))
    session.run("coverage", "erase")
    parts = (
        ("tests", "-n", "auto"),
        (*WITHOUT_SPARK, *(f"--ignore={room}" for room in TIMED), *SIDE_BY_SIDE),
        ("integration/arrow", "-n", "2", *CORE),
    )
    try:
        each(session, *parts, command=("coverage", "run", "-m", "pytest"))
    finally:
        session.run("coverage", "combine", "--quiet")
        session.run("coverage", "report")


@nox.session(reuse_venv=True)
def docs(session: nox.Session) -> None:
    """The documentation and its examples."""
    session.install("--editable", ".[server]", *group("docs"))
    # -E: pages that an earlier build has read would give their warnings no second time.
    sphinx = ("sphinx-build", "-q", "-n", "-W", "--keep-going", "-d", "docs/_build/doctrees")
    session.run(*sphinx, "-E", "-b", "html", "docs", "docs/_build/html")
    session.run(*sphinx, "-b", "doctest", "docs", "docs/_build/doctest")


@nox.session(reuse_venv=True)
def bench(session: nox.Session) -> None:
    """The benchmarks against other clients. Options after --: see --help."""
    session.install("--editable", ".[server]", *group("bench"))
    session.run("python", "-m", "benchmarks", *session.posargs)


for version in PYTHONS:
    nox.session(bench.func, name=f"bench-{version}", python=version, reuse_venv=True)


@nox.session(name="bench-page", reuse_venv=True)
def bench_page(session: nox.Session) -> None:
    """What docs/explanation/performance.md shows, with the compiled reader: about twenty minutes; fills the tables."""
    session.install("--editable", ".[server]", *group("bench"))
    install_speedups(session)
    session.run("python", "-m", "benchmarks.page", *session.posargs)


@nox.session(name="bench-spark", reuse_venv=True)
def bench_spark(session: nox.Session) -> None:
    """The benchmarks in Spark, beside nats-py. Options after --: see --help."""
    session.install("--editable", ".[server,spark]")
    session.run("python", "-m", "benchmarks.spark", *session.posargs)


@nox.session(name="bench-topics", reuse_venv=True)
def bench_topics(session: nox.Session) -> None:
    """The cost of topics, beside nats-py: about five minutes. Options after --: see --help."""
    session.install("--editable", ".[server]")
    session.run("python", "-m", "benchmarks.topics", *session.posargs)


@nox.session(name="bench-key-value", reuse_venv=True)
def bench_key_value(session: nox.Session) -> None:
    """The cost of key-value operations, beside nats-py: under a minute. Options after --: see --help."""
    session.install("--editable", ".[server]", "./speedups")
    session.run("python", "-m", "benchmarks.key_value", *session.posargs)


@nox.session(name="bench-objects", reuse_venv=True)
def bench_objects(session: nox.Session) -> None:
    """The cost of objects, beside nats-py: about three minutes. Options after --: see --help."""
    session.install("--editable", ".[server]")
    session.run("python", "-m", "benchmarks.objects", *session.posargs)


@nox.session(reuse_venv=True)
def campaign(session: nox.Session) -> None:
    """Chaos, fuzz, soak, hostile servers and strangers, for minutes to hours. Options after --: see --help."""
    session.install("--editable", ".[spark]", *group("spark"))
    install_speedups(session)  # the fuzzers compare it with the Python reader
    session.run("python", "-m", "integration.campaign", *session.posargs)


@nox.session(reuse_venv=True)
def release(session: nox.Session) -> None:
    """Build both packages in dist/ as for a release, and try them in a clean environment. Nothing is uploaded."""
    session.install(*group("release"))
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for folder in (".", "speedups"):
        session.run("python", "-m", "build", "--outdir", str(dist), folder)
    built = sorted(map(str, dist.iterdir()))
    session.run("twine", "check", "--strict", *built)
    # What a distribution does: build from the source archives, without a package index.
    offline = ("--no-index", "--no-build-isolation", "--no-deps", "--wheel-dir", session.create_tmp())
    session.install("pip>=23")
    session.run("python", "-m", "pip", "wheel", "--quiet", *offline, *(one for one in built if ".tar" in one))
    try_wheels(session, [one for one in built if one.endswith(".whl")])


def try_wheels(session: nox.Session, wheels: list[str]) -> None:
    """Install the wheels into an environment of their own; run the first example and the smoke tests there."""
    with tempfile.TemporaryDirectory() as folder:  # outside of the tree, whose modules would be imported
        session.run("python", "-m", "venv", f"{folder}/clean")
        python = f"{folder}/clean/bin/python"
        session.run(python, "-m", "pip", "install", "--quiet", *wheels, *group("integration"), external=True)
        for part in ("tests", "integration", "examples"):
            shutil.copytree(ROOT / part, f"{folder}/{part}")
        shutil.copy(ROOT / "pyproject.toml", folder)
        with session.chdir(folder):
            session.run(python, "-c", "import jsclient; print(jsclient.__file__)", external=True)
            session.run(python, "examples/01_push_worker.py", external=True)
            session.run(python, "-m", "pytest", *WIRE, "-m", "smoke", "-q", "-n", "2", external=True)


@nox.session(reuse_venv=True)
def demo(session: nox.Session) -> None:
    """The demonstration: `python -m examples.flights`. Ctrl-C ends it."""
    session.install("--editable", ".[spark]", *group("demo"))
    # After Ctrl-C the demonstration stops its processes, which may take longer than nox waits.
    session.run(
        "python", "-m", "examples.flights", *session.posargs, interrupt_timeout=20.0, terminate_timeout=10.0
    )


@nox.session(venv_backend="none")
def quick(session: nox.Session) -> None:
    """Lint, types and unit tests."""
    several(session, ["tests", "types", "lint"])


@nox.session(venv_backend="none")
def check(session: nox.Session) -> None:
    """Everything a change has to pass: quick, the core of the integration tests and of Spark's, docs, speedups."""
    # The longest two begin. The last one has both cores to itself, and keeps them busy.
    several(session, ["spark", "integration", "speedups", "docs", "types", "lint", "tests"])


@nox.session(venv_backend="none")
def full(session: nox.Session) -> None:
    """All tests, also with other clients, older servers, PySparks and Pythons, and compiled; coverage; the demo."""
    others = [f"tests-{version}" for version in PYTHONS]
    several(
        session,
        ["lint", "types", "public-types", "docs", *others],
        [
            "speedups-full",
            "uvloop",
            "faults",
            "coverage",
            "versions",
            "nats-py",
            "interop",
            "spark-full",
            "spark-4.2",
            "demo",
        ],
        at_once=1,
    )


def several(session: nox.Session, *stages: list[str], at_once: int = 2) -> None:
    """Run sessions, ``at_once`` of them side by side, to the end of all; then print every failure again."""
    shutil.rmtree(REPORTS, ignore_errors=True)
    codes = []
    for names in stages:
        command = [sys.executable, "-m", "nox", "--noxfile", __file__, "--allow-parallel"]
        codes.append(subprocess.call([*command, "--parallel", str(at_once), "--session", *names]))
    print_failures(session)
    if any(codes):
        session.error("not all sessions passed: see above")


def each(session: nox.Session, *parts: tuple[str, ...], command: tuple[str, ...] = ("pytest",)) -> None:
    """Run pytest once for each part, to the end of all."""
    failed = 0
    for part in parts:
        try:
            pytest(session, *part, command=command)
        except nox.command.CommandFailed:
            failed += 1
    if failed:
        session.error(f"{failed} of {len(parts)} runs failed")


def print_failures(session: nox.Session) -> None:
    """Print the failed tests of all sessions: of a long log, often only the end is kept."""
    for report in sorted(REPORTS.glob("*.xml")):
        for case in ElementTree.parse(report).iter("testcase"):
            for failure in (*case.iter("failure"), *case.iter("error")):
                session.log(f"{report.stem}: {case.get('classname')}::{case.get('name')}")
                text = failure.text or failure.get("message") or ""
                print("\n".join(text.splitlines()[-60:]), flush=True)
