"""When a PING is due, and when missing PONGs end the connection."""

from __future__ import annotations

from jsclient.protocol.connection.liveness import Liveness, PingDue


def test_ping_at_each_interval():
    liveness = Liveness(20.0, 2, 100.0)
    assert liveness.due == 120.0
    assert liveness.tick(119.9) is PingDue.NOTHING
    for turn in range(1, 100):
        assert liveness.tick(100.0 + 20 * turn) is PingDue.PING
        liveness.pong_received()


def test_stale_after_pings_without_pong():
    liveness = Liveness(1.0, 2, 0.0)
    assert [liveness.tick(float(second)) for second in range(1, 4)] == [
        PingDue.PING,
        PingDue.PING,
        PingDue.STALE,
    ]


def test_late_pong_counts():
    liveness = Liveness(1.0, 2, 0.0)
    assert [liveness.tick(1.0), liveness.tick(2.0)] == [PingDue.PING, PingDue.PING]
    liveness.pong_received()
    assert [liveness.tick(3.0), liveness.tick(4.0), liveness.tick(5.0)] == [
        PingDue.PING,
        PingDue.PING,
        PingDue.STALE,
    ]


def test_suspended_process_sends_one_ping():
    """The clock has jumped by an hour: the server was not silent for it."""
    liveness = Liveness(20.0, 2, 0.0)
    assert liveness.tick(3600.0) is PingDue.PING
    assert liveness.tick(3600.0) is PingDue.NOTHING
    assert liveness.due == 3620.0
