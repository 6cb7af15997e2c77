"""Writes spark-map.md: the promises of the pipeline with Spark, and the tests that verify them.

    python docs/_tools/spark_map.py            writes docs/spark-map.md
    python docs/_tools/spark_map.py --check    exit code 1 if it is out of date

The tests are found by their ``covers`` marks.
"""

# ruff: noqa: E501  the statements as they are

from marked import ROOT, marked, write

PAGE = ROOT / "docs" / "spark-map.md"

INTRODUCTION = """\
# From the pipeline with Spark to its tests

<!-- Written by docs/_tools/spark_map.py. -->

What the pipeline with Spark promises, by number, and the files with the tests that verify it. A test names the items that it
verifies: `@pytest.mark.covers("L26")`. All of these tests use a real nats-server, and each number has at least one test with
a real Spark session. The others call the source and the sink as Spark calls them. Of L38 the test shows 20,000 rows;
`python -m benchmarks.spark.pipeline --rows 10_000_000` counts ten million by the same steps.
"""

# (id, statement), and headings.
ROWS = [
    "Source, by position",
    (
        "L1",
        '`format("jetstream")` reads streams in streaming and in batch queries; an offset is a stream and its sequence',
    ),
    (
        "L2",
        "A batch that is run again (a repeated task, speculation, a killed executor, driver or JVM) reads exactly the rows that were recorded for it, the first batch included",
    ),
    (
        "L3",
        "Start and end by sequence, by time to the nanosecond (a start is inclusive, an end exclusive), earliest, latest; a time in the future is refused in both kinds of query",
    ),
    ("L4", "Every message between start and end is a row once"),
    (
        "L5",
        "A read that finds nothing (an empty stream, an empty interval, a filter without a message, an end before the first message) is zero rows, not an error",
    ),
    (
        "L6",
        "Filters by subject, and filters that Spark pushes down, give what the same filter after the read gives; a filter that can match no subject of the stream is refused",
    ),
    (
        "L7",
        "Rate limits (messages, bytes, tasks) hold; `availableNow` takes what was there at its start, and ends",
    ),
    (
        "L8",
        "Columns have the documented types; subject, headers (a name twice, empty, without a blank line) and payload are equal in all ways of reading; odd subjects and payloads of the server's greatest size are rows",
    ),
    (
        "L9",
        "Several streams and patterns: each row of each stream once while streams come, go, are purged and are made again",
    ),
    (
        "L10",
        "Mirrors keep the origin's sequences; sources with transforms are read by the subjects that the stream holds",
    ),
    "Source, losses",
    (
        "L11",
        "`failOnDataLoss=true`: whatever was removed unread (by a limit, a purge, a deletion, a recreation) is an error that names stream and sequences; `false`: it is counted and reported, and the rest is read",
    ),
    (
        "L12",
        "A stream that was restored from an older copy is noticed, also when it has grown past the position again",
    ),
    (
        "L13",
        "What a newer message of the same subject superseded (`max_msgs_per_subject`, key-value), or what expired by its own time to live, is not a loss: the newest message of each subject arrives, by default without an error",
    ),
    (
        "L14",
        "A query on a copied, restored or foreign checkpoint goes on exactly, or is refused by what differs",
    ),
    "Queue",
    ("L15", "Rows are claimed messages of a durable consumer; acks follow the commit of the batch"),
    ("L16", "Killed between claim and commit: the messages come again, each in one batch"),
    ("L17", "Two queries, or a query and a worker, on one consumer share it"),
    (
        "L18",
        "Messages that a limit removes before they are claimed, or between claim and read, are told in every ack mode",
    ),
    (
        "L19",
        "`availableNow` does not end while claims of a dead run are still out: it waits for them (at most `ack_wait`), or says how many it left",
    ),
    (
        "L20",
        "Any pull consumer with explicit acks works, whatever its limits; others are refused by what they lack",
    ),
    "Acks in `foreachBatch`",
    (
        "L21",
        "`ack_batch` acks exactly the rows of the batch, after the user's write; without it nothing is acked",
    ),
    (
        "L22",
        "Killed between write and ack: redelivered; with an idempotent or transactional write each effect happens once",
    ),
    ("L23", "nak with a delay and term for some rows of a batch"),
    ("L24", "Work that lasts longer than `ack_wait` keeps its messages"),
    "Sink",
    (
        "L25",
        "Each row is stored once over any kill, replay or restart (within the duplicate window; with the ledger, at any time)",
    ),
    (
        "L26",
        "No row is dropped in silence: two rows that would get one id (two sinks or two subjects in one batch, two rows made from one message, wherever they meet) are both stored, or the query ends with an error that says so",
    ),
    (
        "L27",
        "A replay whose rows lie in other partitions (join strategy, AQE, shuffle) stores each once, or is refused before the first row",
    ),
    (
        "L28",
        "Subject, headers, id and time to live by row; the server's own headers of a copied message (expectations, time to live, rollup, batch, schedule, id) are not taken for commands, unless asked for",
    ),
    (
        "L29",
        "A refused row is named by partition, row, subject, column and remedy; what is stored before it is said",
    ),
    (
        "L30",
        "A target that is full, sealed, missing, a mirror or without rights: an error with limit and remedy; nothing is lost after it is mended",
    ),
    "Operations",
    ("L31", "Two drivers on one checkpoint: one ends with an error, no row is stored twice"),
    (
        "L32",
        "It runs on a cluster as the page says (standalone with killed workers; Connect; files and packages by `spark-submit`)",
    ),
    (
        "L33",
        "TLS, credentials and rotating providers on executors; no secret in plans, logs, UI, checkpoints, errors",
    ),
    (
        "L34",
        "Progress, lag (messages, seconds), losses and duplicates reach a listener, Prometheus and OpenTelemetry, for each stream",
    ),
    (
        "L35",
        "`jsclient spark offsets` reads and rewinds every checkpoint that the supported Spark versions write (offset logs v1 and v2, named sources), and refuses what it does not know",
    ),
    (
        "L36",
        "The costs of idle time, start and tasks stay bounded as streams, subjects (100,000) and batches (10,000) grow; no state on the driver grows with the messages",
    ),
    ("L37", "Epochs arrive whole"),
    ("L38", "Ten million rows, recounted by an independent reader: each once"),
    (
        "L39",
        "pyarrow, DuckDB, Polars and Ray read a part of a stream as a table with the same rows as Spark's batch",
    ),
    ("L40", "A row reaches `foreachBatch` within 0.2 s (p50) of its publish with an idle query"),
]


def page() -> str:
    """The text of spark-map.md."""
    tests = marked("covers")
    lines = [INTRODUCTION]
    for row in ROWS:
        if isinstance(row, str):
            lines += ["", f"## {row}", "", "| id | statement | tests |", "|---|---|---|"]
        else:
            lines.append(f"| {row[0]} | {row[1]} | {_shown(tests.get(row[0], []))} |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def _shown(tests: list[str]) -> str:
    files = sorted({test.partition("::")[0] for test in tests})
    return ", ".join(f"`{file}`" for file in files) if files else "none yet"


if __name__ == "__main__":
    write(PAGE, page())
