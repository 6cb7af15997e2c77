"""A module has the test module of its name, in `tests/` or `integration/`, and that uses it. Exceptions say why."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MOST_INDIRECT, MOST_LINES, MOST_LONG = 40, 600, 3

WIRE = "it needs a server to say anything"
SPARK = "it is called by Spark, and only in a query"
FACADE = "it hands arguments on, and its tests stand where each of them is used"

INDIRECT: dict[str, tuple[str, str]] = {
    "_runtime/connection/attempt.py": ("integration/connection/test_handshakes.py", WIRE),
    "_runtime/connection/connector.py": ("integration/connection/test_connecting.py", WIRE),
    "_runtime/connection/credentials_file.py": ("integration/connection/test_credentials.py", WIRE),
    "_runtime/connection/tcp_transport.py": ("integration/connection/test_tls.py", WIRE),
    "_runtime/connection/unconfirmed_acks.py": ("integration/faults/test_sending.py", WIRE),
    "_runtime/connection/websocket_options.py": ("integration/connection/test_websocket_proxy.py", WIRE),
    "_runtime/connection/websocket_transport.py": ("integration/connection/test_websocket_proxy.py", WIRE),
    "_draining.py": ("integration/connection/test_draining.py", WIRE),
    "consumers/api.py": ("integration/consumers/test_subscribe_forms.py", FACADE),
    "consumers/stall_watch.py": ("integration/consumers/test_stalled.py", WIRE),
    "doctor.py": ("integration/cli/test_doctor.py", "the command prints what it returns"),
    "peers/peer.py": ("integration/peers/test_peers.py", FACADE),
    "protocol/consumers/finding.py": (
        "tests/protocol/consumers/test_diagnosis.py",
        "a value without behavior",
    ),
    "protocol/consumers/worker/reasons.py": (
        "tests/protocol/consumers/worker/test_dead_letter.py",
        "two exceptions without behavior",
    ),
    "protocol/connection/connection_stats.py": (
        "integration/connection/test_life.py",
        "a value without behavior",
    ),
    "publishing/api.py": ("integration/publishing/test_publish.py", FACADE),
    "spark/acks/bulk_ack.py": ("integration/spark/acks/test_ack_batch.py", SPARK),
    "spark/epochs/ownership.py": ("integration/spark/epochs/test_sink.py", SPARK),
    "spark/epochs/reading.py": ("integration/spark/epochs/test_source.py", SPARK),
    "spark/log/batch.py": ("integration/spark/log/test_batch_read.py", SPARK),
    "spark/log/members.py": ("integration/spark/log/test_stream_pattern.py", SPARK),
    "spark/log/planner.py": ("integration/spark/log/test_data_loss.py", SPARK),
    "spark/log/several.py": ("integration/spark/log/test_several_streams.py", SPARK),
    "spark/queue/claimer.py": ("integration/spark/queue/test_claims.py", SPARK),
    "spark/queue/reading.py": ("integration/spark/queue/test_claims.py", SPARK),
    "spark/queue/stream.py": ("integration/spark/queue/test_claims.py", SPARK),
    "spark/queue/unclaimed.py": ("integration/spark/queue/test_removed.py", SPARK),
    "spark/sink/earlier_runs.py": ("integration/spark/sink/test_moved_rows.py", SPARK),
    "spark/sink/publish_batch.py": ("integration/spark/sink/test_queries.py", SPARK),
    "spark/sink/rest_of_batch.py": ("integration/spark/sink/test_moved_rows.py", SPARK),
    "spark/sink/stored_ids.py": ("integration/spark/sink/test_ledger.py", SPARK),
    "spark/source.py": ("integration/spark/log/test_stream.py", SPARK),
    "epochs.py": ("tests/test_exports.py", "a face: it hands out names of others"),
    "tables/bounded.py": ("integration/spark/log/test_batch_read.py", SPARK),
    "tables/known_rows.py": ("integration/arrow/test_known_rows.py", WIRE),
    "tables/listing.py": ("integration/spark/log/test_listing.py", WIRE),
    "tables/reading.py": ("integration/spark/log/test_stream.py", SPARK),
    "topics/api.py": ("integration/topics/test_topic.py", FACADE),
    "topics/snapshot.py": ("integration/topics/test_table.py", WIRE),
}
"""Modules that another test module covers, and why they have none of their own. There are never more of them."""

# Tests of `tables` that need pyarrow or a Spark session stand with those of Spark, which has both. Those of the
# connection that need a server are the room of that name.
ALSO = {"": ("arrow",), "tables": ("spark", "spark/log", "arrow"), "runtime/connection": ("connection",)}
# They have the name of a module, and use it through Arrow or Spark.
NOT_ITS_OWN = {"integration/arrow/test_known_rows.py", "integration/spark/log/test_listing.py"}


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def has_code(module: Path) -> bool:
    """Whether it defines anything. A face that only hands out names of others is tested with the exports."""
    if module.name == "__main__.py" or (module.name == "__init__.py" and module.parent != Path("testing")):
        return False
    return any(
        isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign)
        for node in parsed(ROOT / "jsclient" / module).body
        if not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
    )


def own_tests(module: Path) -> list[Path]:
    """The test modules of its name: rooms and names without their underscore."""
    folder = "/".join(part.lstrip("_") for part in module.parent.parts)
    name = f"test_{module.name.lstrip('_')}"
    folders = (folder, *ALSO.get(folder, ()))
    candidates = [ROOT / top / one / name for top in ("tests", "integration") for one in folders]
    return [
        path for path in candidates if path.is_file() and path.relative_to(ROOT).as_posix() not in NOT_ITS_OWN
    ]


MODULES = [
    module
    for module in (path.relative_to(ROOT / "jsclient") for path in sorted((ROOT / "jsclient").rglob("*.py")))
    if "_auto" not in module.parts and has_code(module)
]
TESTED = {module.as_posix(): own_tests(module) for module in MODULES if own_tests(module)}
ALONE = {module.as_posix() for module in MODULES} - TESTED.keys()


def test_every_module_has_its_test():
    assert sorted(ALONE - INDIRECT.keys()) == [], "add tests/<room>/test_<module>.py, or an entry of INDIRECT"
    assert len(INDIRECT) <= MOST_INDIRECT


def test_no_stale_entries():
    assert sorted(INDIRECT.keys() - ALONE) == [], "gone, or with a test module of its own"
    assert sorted(test for test, _ in INDIRECT.values() if not (ROOT / test).is_file()) == []


BY_BEHAVIOR = {
    "_runtime/connection/credentials.py",
    "_runtime/connection/identity.py",
    "buckets/key_value/snapshot.py",
    "buckets/key_value/watch.py",
    "buckets/objects/direct_chunks.py",
    "buckets/objects/files.py",
    "buckets/objects/ranges.py",
    "buckets/objects/storing.py",
    "buckets/objects/watch.py",
    "buckets/reading.py",
    "consumers/ordered/recreate.py",
    "consumers/pull/fetch.py",
    "core/replies.py",
    "core/services/discovery.py",
    "spark/epochs/source.py",
    "spark/log/mirror.py",
    "spark/sink/column_ids.py",
    "topics/feeds.py",
    "topics/notifiers/kits.py",
}
"""Modules whose own tests reach them only through what users call, which shares no name with them."""


def names_of(module: str) -> set[str]:
    """What it defines at its top, in public, and the names of the module itself."""
    nodes = parsed(ROOT / "jsclient" / module).body
    defined = {
        node.name for node in nodes if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in defined if not name.startswith("_")}


def imports_of(path: Path) -> set[tuple[str, str]]:
    """The modules and names that a test module, or a kit beside it, imports from jsclient."""
    imported: set[tuple[str, str]] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jsclient"):
            imported |= {(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            imported |= {(alias.name, "") for alias in node.names if alias.name.startswith("jsclient")}
    return imported


def members_of(module: str) -> set[str]:
    """The public methods and properties of its classes, without those that many classes have."""
    classes = [node for node in parsed(ROOT / "jsclient" / module).body if isinstance(node, ast.ClassDef)]
    methods = (node for one in classes for node in one.body)
    names = {node.name for node in methods if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return {name for name in names if not name.startswith("_")} - {
        "close",
        "name",
        "next",
        "stream",
        "subject",
    }


@pytest.mark.parametrize("module", sorted(TESTED.keys() - BY_BEHAVIOR))
def test_test_module_uses_its_module(module):
    """It imports the module or something of it, or uses two members of what the module defines."""
    dotted, names = "jsclient." + module.removesuffix(".py").replace("/", "."), names_of(module)
    members = members_of(module)
    for path in TESTED[module]:
        imported = imports_of(path)
        if any(f"{origin}.{name}".startswith(dotted) or name in names for origin, name in imported):
            return
        used = {node.attr for node in ast.walk(parsed(path)) if isinstance(node, ast.Attribute)}
        if names & used or len(members & used) >= 2:
            return
    pytest.fail(f"{', '.join(map(str, TESTED[module]))} uses nothing of {dotted}: {sorted(names | members)}")


def test_few_test_files_are_long():
    paths = [
        path for top in ("tests", "integration", "benchmarks") for path in sorted((ROOT / top).rglob("*.py"))
    ]
    long = [path.name for path in paths if len(path.read_text(encoding="utf-8").splitlines()) > MOST_LINES]
    assert len(long) <= MOST_LONG, long
