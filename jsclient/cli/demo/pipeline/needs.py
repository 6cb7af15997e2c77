"""The requirements of the Spark part."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

__all__ = ["java_release", "why_not"]

_SPARK = (4, 2)
_JAVA = 17
_PATIENCE = 20.0  # seconds for `java -version`


def why_not() -> str | None:
    """The reason why the Spark part cannot run, in a few words; None if it can. PySpark is not imported."""
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        return f'{" and ".join(missing)} not installed: pip install "jsclient[spark]"'
    version = importlib.metadata.version("pyspark")
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < _SPARK:
        return f'PySpark {version} is older than {_SPARK[0]}.{_SPARK[1]}: pip install -U "jsclient[spark]"'
    # Spark looks for Java in the same way.
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return f"no Java found: Spark needs Java {_JAVA} or newer on PATH or in JAVA_HOME"
    release = java_release(java)
    if release is None:
        return f"{java} does not run: Spark needs Java {_JAVA} or newer on PATH or in JAVA_HOME"
    if release < _JAVA:
        return f"{java} is Java {release}: Spark needs Java {_JAVA} or newer"
    return None


def java_release(java: str) -> int | None:
    """The major version of a Java program; None if it does not run."""
    try:
        asked = subprocess.run(
            [java, "-version"], capture_output=True, check=True, timeout=_PATIENCE, text=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', asked.stderr + asked.stdout)
    return int(found[1]) if found else None
