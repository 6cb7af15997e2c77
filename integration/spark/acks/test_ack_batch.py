"""Acks, naks, terms and signs of life for the rows of a batch: counted by the server when the call returns."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from integration.kit.judge.oracle import number_of
from integration.kit.judge.waiting import eventually
from jsclient import ConfigError, NoRespondersError, NotJetStreamMessageError

ACK_WAIT = 2.0


def ns(seconds):
    return int(seconds * 1e9)


@pytest.fixture
async def pulled(spark, server, oracle, make_stream, js):
    """`await pulled(count)`: a stream, and a frame with the replies of what a new consumer of it delivered."""

    async def create(count, *, stream=None, name="c", retention="limits", **consumer):
        own = stream or await make_stream(retention=retention)
        if stream is None:
            await own.publish(count)
        await own.create_consumer(
            name, **{"ack_wait": ns(60), "max_ack_pending": 200_000, "ack_policy": "explicit", **consumer}
        )
        handle = await (await js.stream(own.name)).consumer(name)
        rows = []
        while len(rows) < count:
            rows += [
                (message.reply, message.metadata.consumer_seq, number_of(message.data))
                for message in await handle.fetch(min(count - len(rows), 5000), expires=5.0)
            ]
        frame = spark.createDataFrame(rows, "reply string, consumer_sequence long, number long")
        return own, frame.repartition(3)

    return create


async def state(stream, name="c"):
    return await stream.consumer_info(name)


@pytest.mark.covers("L21")
@pytest.mark.parametrize("on", ["executors", pytest.param("driver", marks=pytest.mark.full)])
async def test_all_acked_when_call_returns(server, pulled, on):
    from jsclient.spark import ack_batch

    stream, frame = await pulled(5000, retention="workqueue")
    assert await asyncio.to_thread(ack_batch, frame, server.url, on=on) == 5000
    info = await state(stream)
    assert info["num_ack_pending"] == info["num_pending"] == 0
    assert info["ack_floor"]["consumer_seq"] == 5000
    assert (await stream.state())["messages"] == 0


@pytest.mark.covers("L21")
async def test_only_rows_there(server, pulled):
    from jsclient.spark import ack_batch

    stream, frame = await pulled(100)
    assert await asyncio.to_thread(ack_batch, frame.where("number <= 40"), {"servers": server.url}) == 40
    assert (await state(stream))["num_ack_pending"] == 60
    none = frame.where("number < 0")
    assert await asyncio.to_thread(ack_batch, none, server.url) == 0
    assert await asyncio.to_thread(ack_batch, frame.limit(0), server.url) == 0
    assert await asyncio.to_thread(ack_batch, frame.where("false"), server.url) == 0
    assert await asyncio.to_thread(ack_batch, none, server.url, on="driver") == 0


@pytest.mark.parametrize("on", ["executors", pytest.param("driver", marks=pytest.mark.full)])
async def test_rows_of_several_consumers(server, pulled, on):
    """The last ack of each is confirmed."""
    from jsclient.spark import ack_batch

    stream, first = await pulled(300)
    _, second = await pulled(300, stream=stream, name="d")
    assert await asyncio.to_thread(ack_batch, first.union(second), server.url, on=on) == 600
    assert (await state(stream, "c"))["num_ack_pending"] == 0
    assert (await state(stream, "d"))["num_ack_pending"] == 0


@pytest.mark.covers("L23")
@pytest.mark.parametrize("on", ["executors", pytest.param("driver", marks=pytest.mark.full)])
async def test_naks_bring_messages_again(server, js, pulled, on):
    from jsclient.spark import nak_batch

    stream, frame = await pulled(50)
    assert await asyncio.to_thread(nak_batch, frame, server.url, on=on) == 50
    again = await (await (await js.stream(stream.name)).consumer("c")).fetch(50, expires=5.0)
    assert [message.metadata.num_delivered for message in again] == [2] * 50


@pytest.mark.covers("L23")
async def test_naks_with_a_delay(server, js, pulled):
    from jsclient.spark import nak_batch

    stream, frame = await pulled(10)
    began = time.monotonic()
    assert await asyncio.to_thread(nak_batch, frame, server.url, on="driver", delay=1.0) == 10
    again = await (await (await js.stream(stream.name)).consumer("c")).fetch(10, expires=10.0)
    assert len(again) == 10
    assert time.monotonic() - began >= 1.0


@pytest.mark.covers("L23")
@pytest.mark.parametrize("on", [pytest.param("executors", marks=pytest.mark.full), "driver"])
async def test_terms_end_message_with_reason(server, oracle, pulled, on):
    from jsclient.spark import term_batch

    stream, frame = await pulled(20, ack_wait=ns(1))
    advisories = f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{stream.name}.c"
    async with oracle.listen(advisories) as reports:
        assert await asyncio.to_thread(term_batch, frame, server.url, on=on, reason="cannot be read") == 20
        await eventually(lambda: len(reports) == 20, what="the advisories")
    assert {json.loads(advisory.data)["reason"] for advisory in reports} == {"cannot be read"}
    assert (await state(stream))["num_ack_pending"] == 0


async def test_one_ack_of_highest_settles_all(server, oracle, pulled):
    """Row: ack-all when the policy allows. One ack a consumer."""
    from jsclient.spark import ack_batch

    stream, frame = await pulled(2000, ack_policy="all")
    async with oracle.listen(f"$JS.ACK.{stream.name}.c.>") as acks:
        done = await asyncio.to_thread(ack_batch, frame.where("number <= 1500"), server.url, policy="all")
        await eventually(lambda: acks, what="an ack")
    assert done == 1500
    assert len(acks) == 1
    info = await state(stream)
    assert info["ack_floor"]["consumer_seq"] == 1500
    assert info["num_ack_pending"] == 500


async def test_ack_all_refused(server, pulled):
    from jsclient.spark import ack_batch

    stream, frame = await pulled(10)
    with pytest.raises(ConfigError, match=r"policy.*'explicit'.*policy='each'"):
        await asyncio.to_thread(ack_batch, frame, server.url, policy="all")
    assert (await state(stream))["num_ack_pending"] == 10


async def test_wrong_said_before_anything_sent(spark, server, pulled):
    from jsclient.spark import ack_batch, heartbeat, nak_batch, term_batch

    stream, frame = await pulled(10)

    def wrong():
        bad = frame.drop("reply")
        for helper in (ack_batch, nak_batch, term_batch):
            with pytest.raises(ConfigError, match="no column 'reply'"):
                helper(bad, server.url)
        with pytest.raises(ConfigError, match="no column 'reply'"), heartbeat(bad, server.url):
            pass
        with pytest.raises(ConfigError, match="no column 'consumer_sequence'"):
            ack_batch(frame.select("reply"), server.url, policy="all")
        with pytest.raises(ConfigError, match="'executors' or 'driver'"):
            ack_batch(frame, server.url, on="moon")
        with pytest.raises(ConfigError, match="'each' or 'all'"):
            ack_batch(frame, server.url, policy="none")
        with pytest.raises(ConfigError, match="no option 'server'"):
            ack_batch(frame, {"servers": server.url, "server": "x"})
        with pytest.raises(ConfigError, match="one line"):
            term_batch(frame, server.url, reason="a\nb")
        with pytest.raises(ConfigError, match="over 0"), heartbeat(frame, server.url, every=0):
            pass
        with pytest.raises(ConfigError, match="1 rows have a null 'reply'"):
            ack_batch(spark.sql("SELECT cast(null AS string) AS reply"), server.url, on="driver")
        for reply in (
            "orders.new",
            "$JS.ACK.S.c.1.1.1.1.0 4\r\nPUB x",
            "$JS.ACK.a.b",
            "$JS.ACK.S 0\r\n\r\nPUB x 1.c.1.1.1.1.0",
        ):
            with pytest.raises(NotJetStreamMessageError):
                ack_batch(spark.createDataFrame([(reply,)], "reply string"), server.url, on="driver")

    await asyncio.to_thread(wrong)
    assert (await state(stream))["num_ack_pending"] == 10


async def test_a_consumer_that_is_gone(server, pulled):
    from jsclient.spark import ack_batch

    stream, frame = await pulled(10)
    await stream.delete_consumer("c")
    with pytest.raises(NoRespondersError):
        await asyncio.to_thread(ack_batch, frame, server.url, on="driver")


@pytest.mark.covers("L24")
@pytest.mark.parametrize("every", [ACK_WAIT / 4, pytest.param(None, marks=pytest.mark.full)])
async def test_signs_of_life_hold_long_batch(spark, server, pulled, every):
    """No message is delivered again although the block takes 1.5 times ``ack_wait``. After it, all is."""
    from jsclient.spark import heartbeat

    # The first job of a session takes seconds, in which the messages of this test would lapse.
    await asyncio.to_thread(spark.createDataFrame([("",)], "reply string").repartition(3).toArrow)
    stream, frame = await pulled(500, ack_wait=ns(ACK_WAIT))
    other = asyncio.create_task(_redelivered(stream))

    def work():
        with heartbeat(frame, server.url, every=every) as count:
            time.sleep(1.5 * ACK_WAIT)
            assert not other.done()
        return count

    assert await asyncio.to_thread(work) == 500
    assert await asyncio.wait_for(other, 10 * ACK_WAIT) == 2


async def _redelivered(stream):
    """Wait for a message that is delivered again, and say how often it was."""
    oracle = stream.oracle
    inbox = oracle.nc.new_inbox()
    sub = await oracle.nc.subscribe(inbox)
    pull = json.dumps({"batch": 1, "expires": ns(60)}).encode()
    await oracle.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream.name}.c", pull, reply=inbox)
    return (await sub.next_msg(60)).metadata.num_delivered


@pytest.mark.covers("L21", "L23")
@pytest.mark.full
async def test_in_query_acks_by_itself(spark, server, oracle, make_stream, drain):
    """`ackOn` manual: what the function acks is acked, the rest comes again."""
    from jsclient.spark import ack_batch, nak_batch, term_batch

    stream = await make_stream(retention="workqueue", allow_direct=True)
    await stream.publish(90)
    await stream.create_consumer("c", ack_wait=ns(60), max_ack_pending=1000)
    options = {
        "servers": server.url,
        "stream": stream.name,
        "mode": "queue",
        "consumer": "c",
        "ackOn": "manual",
    }
    frame = spark.readStream.format("jetstream").options(**options).load()
    url = server.url

    def settle(rows, _):
        number = rows.selectExpr("*", "int(cast(data as string)) % 3 as third").persist()
        ack_batch(number.where("third = 0"), url)
        nak_batch(number.where("third = 1 and num_delivered = 1"), url, on="driver", delay=30)
        term_batch(number.where("third = 2"), {"servers": url}, on="driver")
        number.unpersist()

    done = await asyncio.to_thread(drain, frame, also=settle)
    assert len(done.rows) == 90
    info = await state(stream)
    assert info["num_ack_pending"] == (await stream.state())["messages"] == 30


@pytest.mark.covers("L21", "L23")
@pytest.mark.full
async def test_with_spark_connect(server, oracle, make_stream, connect_spark, tmp_path):
    """The source, and each helper in ``foreachBatch``, which runs in a process of the server."""
    stream = await make_stream(retention="workqueue", allow_direct=True)
    await stream.publish(60)
    await stream.create_consumer("c", ack_wait=ns(60), max_ack_pending=1000)
    code = """
        from pathlib import Path
        options = {"servers": url, "stream": stream, "mode": "queue", "consumer": "c", "ackOn": "manual"}
        frame = spark.readStream.format("jetstream").options(**options).load()
        def settle(rows, number):
            from jsclient.spark import ack_batch, heartbeat, nak_batch, term_batch
            third = rows.selectExpr("*", "int(cast(data as string)) % 3 as third").persist()
            with heartbeat(rows, url) as alive:
                counts = [alive, ack_batch(third.where("third = 0"), url)]
            counts.append(ack_batch(third.where("third = 1"), url, on="driver"))
            counts.append(term_batch(third.where("third = 2 and int(cast(data as string)) <= 30"), url))
            counts.append(nak_batch(third.where("third = 2 and int(cast(data as string)) > 30"), url, delay=30))
            Path(out, str(number)).write_text(str(counts))
        query = frame.writeStream.foreachBatch(settle).option("checkpointLocation", out + "/checkpoint")
        query = query.trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        result = [Path(out, "0").read_text(), Path(out, "1").exists()]
    """
    result = await asyncio.to_thread(
        connect_spark, code, url=server.url, stream=stream.name, out=str(tmp_path)
    )
    assert result == ["[60, 20, 20, 10, 10]", False]
    info = await state(stream)
    assert info["num_ack_pending"] == (await stream.state())["messages"] == 10
