"""Adds bytecode to the archive from which Spark starts Python processes: half the CPU time of each start."""

from __future__ import annotations

import compileall
import py_compile
import tempfile
import zipfile
from pathlib import Path

import pyspark

ARCHIVE = Path(pyspark.__path__[0]) / "python" / "lib" / "pyspark.zip"
UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH
"""An archive has no time stamps to compare with the time stamps of the sources."""


def has_bytecode(archive: Path) -> bool:
    with zipfile.ZipFile(archive) as packed:
        return any(name.endswith(".pyc") for name in packed.namelist())


def add_bytecode(archive: Path) -> None:
    """Replace the archive. It is never changed in place: an installer may share the file with other environments."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        sources = Path(folder) / "sources"
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(sources)
        compileall.compile_dir(
            sources, quiet=2, legacy=True, stripdir=str(sources), invalidation_mode=UNCHECKED
        )
        packed_again = Path(folder) / "pyspark.zip"
        with zipfile.ZipFile(packed_again, "w") as packed:
            for path in sorted(sources.rglob("*")):
                packed.write(path, path.relative_to(sources))
        packed_again.replace(archive)


if __name__ == "__main__":
    if not has_bytecode(ARCHIVE):
        add_bytecode(ARCHIVE)
