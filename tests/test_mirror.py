"""Every module has the test module of its name, in `tests/` or `integration/`, or the one of this list."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

COVERED = {
    "doctor.py": "integration/cli/test_doctor.py",
    "kits.py": "tests/test_exports.py",
    "_runtime/matching.py": "integration/consumers/test_filters_match.py",
    "_runtime/refusals.py": "integration/publishing/test_full_streams.py",
    "_runtime/calls.py": "integration/streams/test_lookup.py",
    "_runtime/handlers.py": "integration/connection/test_plain_functions.py",
    "_runtime/connection/credentials.py": "integration/connection/test_identity.py",
    "_runtime/connection/credentials_file.py": "integration/connection/test_credentials.py",
    "_runtime/connection/attempt.py": "integration/connection/test_connecting.py",
    "_runtime/connection/connect_errors.py": "integration/connection/test_refusals.py",
    "_runtime/connection/connector.py": "integration/connection/test_connecting.py",
    "_runtime/connection/identity.py": "integration/connection/test_identity.py",
    "_runtime/connection/own_connection.py": "integration/connection/test_own_connection.py",
    "_runtime/connection/tcp_transport.py": "integration/connection/test_close.py",
    "_runtime/connection/transport.py": "integration/connection/test_connecting.py",
    "_runtime/connection/websocket_transport.py": "integration/connection/test_connecting.py",
    "_runtime/connection/unconfirmed_acks.py": "integration/faults/test_sending.py",
    "_runtime/connection/user_connection.py": "integration/connection/test_user_connection.py",
    "_runtime/publish.py": "integration/publishing/test_publish.py",
    "client.py": "integration/connection/test_close.py",
    "consumers/api.py": "integration/consumers/test_subscribe_forms.py",
    "consumers/pull/consumer.py": "integration/consumers/test_pause_reset.py",
    "consumers/ending.py": "integration/consumers/test_unsubscribe.py",
    "consumers/ordered/puller.py": "tests/consumers/ordered/test_consumer.py",
    "consumers/pull/batch.py": "tests/consumers/pull/test_fetch.py",
    "consumers/pull/puller.py": "tests/consumers/pull/test_messages.py",
    "consumers/pull/subscription.py": "tests/consumers/pull/test_fetch.py",
    "consumers/push/buffer.py": "tests/consumers/push/test_subscription.py",
    "consumers/look.py": "integration/consumers/test_stalled.py",
    "consumers/stall_watch.py": "integration/consumers/test_stalled.py",
    "consumers/worker/handler_pool.py": "tests/consumers/worker/test_worker.py",
    "consumers/worker/run.py": "tests/consumers/worker/test_worker.py",
    "consumers/worker/settling.py": "tests/consumers/worker/test_worker.py",
    "consumers/worker/sources.py": "tests/consumers/worker/test_worker.py",
    "epochs.py": "tests/test_exports.py",
    "events.py": "tests/test_exports.py",
    "models.py": "tests/test_exports.py",
    "peers/backend.py": "integration/peers/test_store.py",
    "peers/engine.py": "tests/peers/test_chaos.py",
    "peers/errors.py": "integration/peers/test_peers.py",
    "peers/handlers.py": "tests/peers/test_dispatch.py",
    "peers/peer.py": "integration/peers/test_peers.py",
    "protocol/consumers/subscribe_request.py": "tests/protocol/consumers/test_subscribe.py",
    "protocol/consumers/finding.py": "tests/protocol/consumers/test_diagnosis.py",
    "protocol/consumers/consume.py": "tests/protocol/consumers/test_fetch.py",
    "protocol/consumers/worker/reasons.py": "tests/protocol/consumers/worker/test_dead_letter.py",
    "protocol/connection/connection_stats.py": "integration/connection/test_life.py",
    "protocol/connection_events.py": "tests/protocol/test_events.py",
    "protocol/ending_events.py": "tests/protocol/test_events.py",
    "protocol/event_base.py": "tests/protocol/test_events.py",
    "protocol/epochs/live.py": "tests/protocol/epochs/test_trackers.py",
    "protocol/models/account.py": "tests/protocol/models/test_stream.py",
    "protocol/models/cluster.py": "tests/protocol/models/test_stream.py",
    "protocol/models/drift.py": "tests/protocol/models/test_stream.py",
    "protocol/models/stream_config.py": "tests/protocol/models/test_stream.py",
    "protocol/peers/options.py": "tests/protocol/peers/test_tracker.py",
    "protocol/peers/rules.py": "tests/protocol/peers/test_tracker.py",
    "protocol/topics/record.py": "tests/protocol/topics/test_record_codec.py",
    "protocol/wire/header_names.py": "tests/protocol/wire/test_headers.py",
    "protocol/wire/server_error.py": "integration/connection/test_permissions.py",
    "publishing/last_words.py": "integration/connection/test_mistakes.py",
    "publishing/api.py": "integration/publishing/test_publish.py",
    "publishing/ingest_channel.py": "tests/publishing/test_fast_ingest.py",
    "server/guard.py": "integration/server/test_server.py",
    "server/nats_server.py": "integration/server/test_server.py",
    "spark/acks/bulk_ack.py": "integration/spark/acks/test_ack_batch.py",
    "spark/epochs/ownership.py": "integration/spark/epochs/test_sink.py",
    "spark/epochs/reading.py": "integration/spark/epochs/test_source.py",
    "spark/log/batch.py": "integration/spark/log/test_batch_read.py",
    "spark/log/limits.py": "integration/spark/log/test_stream.py",
    "spark/log/members.py": "integration/spark/log/test_stream_pattern.py",
    "spark/log/planner.py": "integration/spark/log/test_data_loss.py",
    "spark/log/several.py": "integration/spark/log/test_several_streams.py",
    "spark/queue/claimer.py": "integration/spark/queue/test_claims.py",
    "spark/queue/reading.py": "integration/spark/queue/test_claims.py",
    "spark/queue/stream.py": "integration/spark/queue/test_claims.py",
    "spark/queue/unclaimed.py": "integration/spark/queue/test_removed.py",
    "spark/sink/earlier_runs.py": "integration/spark/sink/test_moved_rows.py",
    "spark/sink/partition_writer.py": "integration/spark/sink/test_partitions.py",
    "spark/sink/publish_batch.py": "integration/spark/sink/test_queries.py",
    "spark/sink/rest_of_batch.py": "integration/spark/sink/test_moved_rows.py",
    "spark/sink/row_columns.py": "integration/spark/sink/test_rows.py",
    "spark/sink/row_keys.py": "integration/spark/sink/test_shared_rows.py",
    "spark/sink/spark_writer.py": "integration/spark/sink/test_writers.py",
    "spark/sink/stored_ids.py": "integration/spark/sink/test_ledger.py",
    "spark/sink/target.py": "integration/spark/sink/test_writers.py",
    "spark/source.py": "integration/spark/log/test_stream.py",
    "streams/api.py": "integration/streams/test_ensure.py",
    "streams/stream.py": "integration/streams/test_management.py",
    "tables/bounded.py": "integration/spark/log/test_batch_read.py",
    "tables/columns.py": "integration/spark/log/test_columns.py",
    "tables/listing.py": "integration/spark/log/test_listing.py",
    "tables/reading.py": "integration/spark/log/test_stream.py",
    "tables/session.py": "integration/spark/test_session.py",
    "tables/tasks.py": "integration/spark/log/test_stream.py",
    "topics/latest.py": "integration/topics/test_table.py",
    "topics/snapshot.py": "integration/topics/test_table.py",
    "topics/stall_watch.py": "integration/topics/test_stalled.py",
    "topics/api.py": "integration/topics/test_topic.py",
    "topics/epochs/events.py": "tests/topics/epochs/test_topic.py",
    "topics/epochs/history.py": "tests/topics/epochs/test_topic.py",
    "topics/epochs/home.py": "tests/topics/epochs/test_topic.py",
    "topics/epochs/live_publisher.py": "integration/topics/epochs/test_live.py",
    "topics/epochs/live_subscription.py": "integration/topics/epochs/test_live.py",
    "topics/epochs/presence.py": "integration/topics/epochs/test_takeover.py",
    "topics/epochs/publisher.py": "tests/topics/epochs/test_topic.py",
    "topics/epochs/subscription.py": "tests/topics/epochs/test_topic.py",
    "topics/memory_log.py": "tests/topics/test_log.py",
    "topics/notifiers/descriptors.py": "integration/topics/notifiers/test_sites.py",
    "topics/notifiers/log_iteration.py": "tests/topics/notifiers/test_kits.py",
    "topics/notifiers/newest.py": "tests/topics/notifiers/test_stream_notifier.py",
}
"""Modules without a test module of their own, and the tests that cover them most directly."""

NO_CODE = {"__init__.py", "__main__.py"}


def own_tests(module: Path) -> list[Path]:
    """Where the test module of a module may be: rooms and names without their underscore."""
    folders = [folder.lstrip("_") for folder in module.parent.parts]
    name = f"test_{module.name.lstrip('_')}"
    return [ROOT.joinpath(top, *folders, name) for top in ("tests", "integration")]


MODULES = [path.relative_to(ROOT / "jsclient") for path in sorted((ROOT / "jsclient").rglob("*.py"))]
ALONE = {
    module.as_posix()
    for module in MODULES
    if module.name not in NO_CODE
    and "_auto" not in module.parts
    and not any(test.is_file() for test in own_tests(module))
}


def test_every_module_has_its_test():
    assert sorted(ALONE - set(COVERED)) == [], "add tests/<room>/test_<module>.py, or an entry of COVERED"


def test_no_stale_entries():
    assert sorted(set(COVERED) - ALONE) == [], "gone, or with a test module of its own"
    assert sorted(test for test in set(COVERED.values()) if not (ROOT / test).is_file()) == []
