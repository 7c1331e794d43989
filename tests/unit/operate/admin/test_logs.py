from __future__ import annotations

import pytest

from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.demo.ports import free_port
from consumerd.member.fetch.v07.boundaries import SearchReach, begins_message, boundary_before
from consumerd.operate.admin.logs import LogRange, LookupFailure, OffsetAtTime, OffsetsQuery
from consumerd.wire.registry.values import RegisteredBroker as Registered
from consumerd.wire.v07 import LATEST, Codec, encode_message_set
from tests.unit.conftest import Cluster

T = TopicPartition("t", 0, 0)


async def test_reads_ranges_of_several_brokers_beside_a_dead_one(cluster: Cluster) -> None:
    await cluster.start(0)
    await cluster.start(1, segment_bytes=50)
    ends = await cluster.fill(T, ([b"a", b"bb"], Codec.NONE))
    other = TopicPartition("t", 1, 1)
    await cluster.fill(other, ([b"x" * 60] * 3, Codec.NONE))
    cluster.brokers[2] = Registered(2, "", "127.0.0.1", free_port())
    dead, unknown = TopicPartition("t", 2, 0), TopicPartition("t", 3, 0)
    ranges = await cluster.logs.ranges([unknown, T, other, dead, T])
    assert list(ranges) == [unknown, T, other, dead]
    assert ranges[T] == LogRange(0, ends[-1])
    assert ranges[other] == LogRange(0, 210)
    assert LogRange(3, 10).size == 7
    assert "cannot connect" in ranges[dead].reason  # type: ignore[union-attr]
    assert ranges[unknown] == LookupFailure("broker 3 is not registered in ZooKeeper; is it running?")


async def test_answers_the_other_requests_when_a_broker_rejects_one(cluster: Cluster) -> None:
    await cluster.start(0)
    ends = await cluster.fill(T, ([b"a"], Codec.NONE))
    good = [OffsetsQuery(T, LATEST, number) for number in range(1, 150)]
    bad = [OffsetsQuery(TopicPartition("t", 0, number), LATEST, 1) for number in (7, 8)]
    answers = await cluster.logs.ask([*good[:50], bad[0], *good[50:140], bad[1], *good[140:]])
    assert all(isinstance(answers[question], LookupFailure) for question in bad)
    assert {answers[question] for question in good[1:]} == {(ends[-1], 0)}


async def test_reports_a_topic_that_cannot_be_requested(cluster: Cluster) -> None:
    await cluster.start(0)
    ends = await cluster.fill(T, ([b"a"], Codec.NONE))
    long = TopicPartition("\N{SNOWMAN}" * 20_000, 0, 0)
    ranges = await cluster.logs.ranges([long, T])
    assert isinstance(ranges[long], LookupFailure)
    assert ranges[T] == LogRange(0, ends[-1])


async def test_asks_a_hanging_broker_once(cluster: Cluster) -> None:
    import asyncio

    accepted = 0

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        await reader.read()
        writer.close()

    from consumerd.net.connect import Connection, connect
    from consumerd.net.connection import ConnectionSettings
    from consumerd.operate.admin.logs import BrokerLogs

    async def impatient(host: str, port: int) -> Connection:
        return await connect(host, port, settings=ConnectionSettings(socket_timeout=0.05))

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        logs = BrokerLogs({0: Registered(0, "", "127.0.0.1", port)}, impatient)
        ranges = await logs.ranges(TopicPartition("t", 0, number) for number in range(300))
    assert accepted == 1
    assert {type(answer) for answer in ranges.values()} == {LookupFailure}
    assert "did not answer within" in ranges[T].reason  # type: ignore[union-attr]


async def test_finds_offsets_before_a_time(cluster: Cluster) -> None:
    broker = await cluster.start(0, segment_bytes=40)
    await cluster.fill(T, ([b"x" * 40] * 3, Codec.NONE))
    files = sorted((cluster.folder / "0" / "t-0").glob("*.kafka"))
    starts = [int(file.stem) for file in files]
    assert starts == [0, 50, 100]
    await broker.stop()
    import os

    for number, file in enumerate(files):
        os.utime(file, (1000 * (number + 1), 1000 * (number + 1)))
    await cluster.start(0, segment_bytes=40)
    logs, ranges = cluster.logs, {T: LogRange(0, 150)}
    assert await logs.at_time(ranges, 999_999) == {T: OffsetAtTime(0, "all messages in the log are younger")}
    assert await logs.at_time(ranges, 1_000_000) == {T: OffsetAtTime(0, "all messages in the log are younger")}
    assert await logs.at_time(ranges, 2_000_000) == {T: OffsetAtTime(50)}
    assert await logs.at_time(ranges, 2_999_999) == {T: OffsetAtTime(50)}
    assert await logs.at_time(ranges, 4_000_000) == {T: OffsetAtTime(100)}
    assert await logs.at_time(ranges, 1 << 50) == {T: OffsetAtTime(150)}
    gone = TopicPartition("t", 4, 0)
    assert isinstance((await logs.at_time({gone: LogRange(0, 150)}, 5))[gone], LookupFailure)


MIXED = (
    ([b"", b"a" * 30, b"\0" * 25], Codec.NONE),
    ([b"one", b"two", b"three"], Codec.GZIP),
    ([b"b" * 60, encode_message_set([b"a message", b"in a message"])], Codec.NONE),
    ([b"four", b"five"], Codec.SNAPPY),
    ([b"c"], Codec.NONE),
)


@pytest.mark.parametrize("reach", [SearchReach(), SearchReach(walk=0, back=120)])
async def test_finds_the_boundary_before_every_byte(cluster: Cluster, reach: SearchReach) -> None:
    await cluster.start(0, segment_bytes=150)
    ends = await cluster.fill(T, *MIXED, *MIXED)
    logs = cluster.logs
    for offset in range(ends[-1] + 1):
        assert await boundary_before(logs, T, offset, reach=reach) == max(end for end in ends if end <= offset)
        if offset % 3 == 0 or offset in ends:
            assert await begins_message(logs, T, offset, reach=reach) is (offset in ends)


async def test_follows_the_segment_with_too_many_candidates(cluster: Cluster) -> None:
    """Bytes that look like beginnings everywhere make the search give up and the segment be followed."""
    await cluster.start(0)
    counters = b"".join(number.to_bytes(4, "big") for number in range(9_000, 12_000))
    ends = await cluster.fill(T, ([b"a", counters, counters, b"b"], Codec.NONE))
    assert await boundary_before(cluster.logs, T, ends[3] - 5, reach=SearchReach(0, 10_000)) == ends[2]
    assert await boundary_before(cluster.logs, T, ends[3], reach=SearchReach(0, 10_000)) == ends[3]


async def test_finds_boundaries_among_large_messages(cluster: Cluster) -> None:
    await cluster.start(0, max_message_bytes=4 << 20)
    ends = await cluster.fill(T, ([b"s", bytes(3 << 20), b"t" * 100, bytes(100_000), b"u"], Codec.NONE))
    logs = cluster.logs
    for end in ends:
        assert await begins_message(logs, T, end)
        assert await boundary_before(logs, T, end) == end
    for offset in (ends[1] + 5, ends[2] - 1):
        assert not await begins_message(logs, T, offset)
        assert await boundary_before(logs, T, offset) == ends[1]
    assert await boundary_before(logs, T, ends[3] + 1) == ends[3]


async def test_reports_a_damaged_log(cluster: Cluster) -> None:
    broker = await cluster.start(0)
    ends = await cluster.fill(T, ([b"a" * 20, b"b" * 20, b"c" * 20], Codec.NONE))
    await broker.stop()
    (file,) = (cluster.folder / "0" / "t-0").glob("*.kafka")
    data = bytearray(file.read_bytes())
    data[ends[1] : ends[1] + 4] = b"\xff" * 4  # a length that nothing can have
    data[ends[0] + 15] ^= 1  # and a wrong CRC before it
    file.write_bytes(data)
    await cluster.start(0)
    logs = cluster.logs
    assert not await begins_message(logs, T, 0)
    assert await boundary_before(logs, T, 3) == 0
    with pytest.raises(BrokerError, match=f"no message at {ends[1]}"):
        await boundary_before(logs, T, ends[2])
    with pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
        await begins_message(logs, T, ends[-1] + 1)
    with pytest.raises(BrokerError, match="not registered"):
        await boundary_before(logs, TopicPartition("t", 9, 0), 5)
