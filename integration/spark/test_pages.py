"""The Python of the pages about Spark is executed, page by page, and prints what they say, so do their commands.

See also `integration/docs/test_pages.py`. A separate server listens at the address in the pages, and a PostgreSQL
database at the address in the page about databases. In README.md the blocks marked `py` are executed.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import jsclient
from integration.kit.spark.sessions import environment

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ("README.md", "py"),
    ("docs/howto/arrow.md", "python"),
    *(
        (str(path.relative_to(ROOT)), "python")
        for part in ("tutorial", "howto", "explanation")
        for path in sorted((ROOT / "docs" / part).glob("spark*.md"))
    ),
]
SHORT = {"README.md", "docs/howto/spark-operating.md"}
"""The pages whose code `check` executes. The others take many queries, so the full tests execute them."""

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = "nats://127.0.0.1:4222"
DATABASE = "postgresql://127.0.0.1/shop"


def blocks(page: str, language: str) -> list[tuple[str, str | None]]:
    """The code, each block with the text that it prints, if the page says. A ``console`` block is both."""
    fences = [(match[1], match[2]) for match in FENCE.finditer((ROOT / page).read_text(encoding="utf-8"))]
    following = [*fences[1:], ("", "")]
    return [
        tuple(code.split("\n", 1))
        if kind == "console"
        else (code, following[at][1] if following[at][0] == "text" else None)
        for at, (kind, code) in enumerate(fences)
        if kind in (language, "console")
    ]


def execute(text: str, names: dict[str, Any], page: str) -> None:
    """Python, or a command of jsclient after ``$``."""
    if not text.startswith("$ jsclient "):
        exec(compile(text, page, "exec"), names)
        return
    code = "import sys; from jsclient.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *shlex.split(text)[2:]]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, timeout=120, env=environment()
    )
    print(done.stdout, end="")


@pytest.mark.server(">=2.11")
@pytest.mark.parametrize(
    ("page", "language"),
    [
        pytest.param(*page, marks=[] if page[0] in SHORT else [pytest.mark.full])
        for page in PAGES
        if blocks(*page)
    ],
)
async def test_python_of_page_does_page_says(
    request: Any, spark: Any, own_server: Any, in_thread: Any, tmp_path: Path, page: str, language: str
) -> None:
    positions = {"/data/": f"{tmp_path}/"}
    if DATABASE in (ROOT / page).read_text(encoding="utf-8"):
        positions[DATABASE] = request.getfixturevalue("database")
    positions[ADDRESS] = (own := await own_server()).url
    async with jsclient.connect(own.url) as js:
        # What the shorter pages take for granted.
        if "tutorial" not in page:
            await js.create_stream("ORDERS", subjects=["orders.>"], allow_direct=True)
            await js.create_stream("COPY", subjects=["copy.>"], allow_direct=True)
            for number in range(20):
                await js.publish(f"orders.{number % 2}", b"%d" % number)

    def run() -> None:
        names: dict[str, Any] = {"__name__": "__main__", "spark": spark}
        for text, printed in blocks(page, language):
            code = text
            for position, here in positions.items():
                code = code.replace(position, here)
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                execute(code, names, page)
                for query in spark.streams.active:  # those without an end
                    query.processAllAvailable()
                    query.stop()
            got = output.getvalue()
            if printed is not None:
                fits = doctest.OutputChecker().check_output(printed.rstrip(), got.rstrip(), doctest.ELLIPSIS)
                assert fits, f"{page} says\n{printed}and it is\n{got}"

    await in_thread(run)


OFFERS = (ROOT / "docs" / "explanation" / "spark-data-source.md").read_text(encoding="utf-8")


def test_page_names_all_of_pyspark() -> None:
    """A release of PySpark with more of them makes the page incomplete."""
    from pyspark.sql import datasource
    from pyspark.sql.streaming import datasource as limits

    readers = (
        datasource.DataSourceReader,
        datasource.DataSourceStreamReader,
        datasource.DataSourceStreamWriter,
    )
    offered = {name for one in readers for name in vars(one) if not name.startswith("_")}
    for module in (datasource, limits):
        own = (
            one
            for one in vars(module).values()
            if isinstance(one, type) and one.__module__ == module.__name__
        )
        offered |= {one.__name__ for one in own}
    general = {"DataSource", "Filter", "ReadLimit", "CaseInsensitiveDict", "partitions", "read", "write"}
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", OFFERS))))
    assert offered - general - named == set()


@pytest.mark.full
def test_spark_has_none_of_the_rest(spark: Any) -> None:
    missing = set(
        re.findall(
            r"`((?:Supports|Reports|Requires|Continuous|Custom)\w+)`", OFFERS.split("## Not offered")[1]
        )
    )
    assert len(missing) > 8
    package = "org.apache.spark.sql.execution.datasources.v2.python."
    classes = (
        "PythonScanBuilder",
        "PythonScan",
        "PythonBatch",
        "PythonMicroBatchStreamWithTriggerAvailableNow",
    )
    classes += (
        "PythonWriteBuilder",
        "PythonWrite",
        "PythonStreamingWrite",
        "PythonTable",
        "PythonBatchWrite",
    )
    implemented: set[str] = set()
    for name in classes:
        of = spark._jvm.java.lang.Class.forName(package + name)
        while of is not None:
            implemented |= {one.getSimpleName() for one in of.getInterfaces()}
            of = of.getSuperclass()
    assert {"SupportsPushDownFilters", "SupportsAdmissionControl"} <= implemented
    assert implemented & missing == set()
