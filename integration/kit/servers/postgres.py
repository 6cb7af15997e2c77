"""A PostgreSQL server of the distribution's package, for tests that write to a database."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_DEBIAN = Path("/usr/lib/postgresql")  # has a folder for each version, none of which is on the PATH
_START_LIMIT = 60.0
_USER = "jsclient"


def _program(name: str) -> str | None:
    folders = sorted(_DEBIAN.glob("*/bin"), key=lambda path: path.parent.name.zfill(3), reverse=True)
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)]))


def missing() -> str | None:
    """The reason why tests cannot write to PostgreSQL here, with a remedy. None if they can."""
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed: pip install 'psycopg[binary]'"
    if _program("initdb") is None or _program("postgres") is None:
        return "there is no PostgreSQL server: install the package postgresql"
    return None


class Postgres:
    """A server on a Unix socket in a temporary directory, which the directory alone protects.

    PostgreSQL refuses to run as root. Then the server runs as another user, who has no access to pytest's directories:
    the files are in a directory beside them.
    """

    def __init__(self) -> None:
        self._files = Path(tempfile.mkdtemp(prefix="jsclient-postgres-"))
        self._as: dict[str, object] = {}
        if os.geteuid() == 0:
            known = {user.pw_name: user for user in pwd.getpwall()}
            user = known.get("postgres") or known["nobody"]
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(self._files, user.pw_uid, user.pw_gid)
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None

    def conninfo(self, database: str = "postgres") -> str:
        return f"host={self._files} user={_USER} dbname={database}"

    @property
    def log(self) -> str:
        return (self._files / "log").read_text(encoding="utf-8", errors="replace")

    def start(self) -> None:
        """Create the files, start the server and wait until it answers."""
        data = self._files / "data"
        created = self._run("initdb", "-D", data, "-U", _USER, "-A", "trust", "-E", "UTF8", "--no-sync")
        if created.wait(_START_LIMIT):
            raise RuntimeError(f"initdb failed:\n{self.log}")
        # Committed data survives the end of the processes, but not the end of the machine.
        self._process = self._run("postgres", "-D", data, "-k", self._files, "-F", "-c", "listen_addresses=")
        self._until_ready(self._process)

    def _run(self, program: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
        actual = _program(program)
        assert actual is not None, missing()
        with (self._files / "log").open("ab") as log:
            return subprocess.Popen(
                [actual, *map(str, arguments)],
                stdout=log,
                stderr=log,
                cwd=self._files,
                start_new_session=True,
                **self._as,  # type: ignore[arg-type]
            )

    def _until_ready(self, process: subprocess.Popen[bytes]) -> None:
        import psycopg

        deadline = time.monotonic() + _START_LIMIT
        while True:
            try:
                psycopg.connect(self.conninfo()).close()
                return
            except psycopg.OperationalError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL does not start ({error}):\n{self.log}") from None
            time.sleep(0.05)

    def stop(self) -> None:
        """End the server, even with open connections, and remove its files."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)
                self._process.wait(30)
        shutil.rmtree(self._files, ignore_errors=True)

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """A new database, as conninfo. At the end it is dropped, even with open connections."""
        import psycopg

        name = f"test{next(self._numbers)}"
        with psycopg.connect(self.conninfo(), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}")
        yield self.conninfo(name)
        with psycopg.connect(self.conninfo(), autocommit=True) as db:
            db.execute(f"DROP DATABASE {name} WITH (FORCE)")
