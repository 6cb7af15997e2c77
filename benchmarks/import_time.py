"""CPU seconds of ``import jsclient`` and of ``import nats``, alternating, each in a fresh interpreter.

Both are loaded from bytecode, as an installed package is: it is written to a temporary folder first, even where
``PYTHONDONTWRITEBYTECODE`` is set.

    python3 benchmarks/import_time.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

ROUNDS = 15
_MEASURE = "import time; start = time.process_time(); import {}; print(time.process_time() - start)"


def cpu_seconds(module: str, bytecode: str) -> float:
    """CPU seconds of one import, of its module and of all that it imports; ``bytecode`` is its folder."""
    command = [sys.executable, "-c", _MEASURE.format(module)]
    env = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout)


def main() -> None:
    modules = ("jsclient", "nats")
    seconds: dict[str, list[float]] = {module: [] for module in modules}
    with tempfile.TemporaryDirectory() as bytecode:
        for number in range(ROUNDS + 1):
            for module in modules:
                figure = cpu_seconds(module, bytecode)
                if number:  # the first round writes bytecode
                    seconds[module].append(figure)
    medians = {module: statistics.median(figures) for module, figures in seconds.items()}
    for module, median in medians.items():
        print(f"import {module:10} {median * 1000:6.1f} ms")
    print(f"ratio           {medians['jsclient'] / medians['nats']:8.2f}")


if __name__ == "__main__":
    main()
