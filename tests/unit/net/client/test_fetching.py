"""One FETCH for many partitions, as each version of brokers knows it, and its responses."""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.net.client.fetching import FetchedPartition, fetch_partitions
from consumerd.net.errors import BadFrameError
from consumerd.wire.v08 import ResponseHeader, ResponseMessage, decode_request, encode_response
from consumerd.wire.v08.apis import FETCH
from consumerd.wire.v08.fetch_session import FetchSession, PartitionFetch
from consumerd.wire.v08.messages import decode_response_body, encode_request
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions

IDS = {"t": b"\x01" * 16, "u": b"\x02" * 16}
NAMES = {number: name for name, number in IDS.items()}
VERSIONS = range(FETCH.versions[0], FETCH.versions[1] + 1)


class OneVersion:
    """A channel to a broker of versions up to one, which has `x` in each partition; both ways go over the codec."""

    address = "h:9"

    def __init__(self, version: int, **part: Any) -> None:
        self.versions = BrokerVersions("h:9", BrokerRelease.V0_10_OR_NEWER, {FETCH.key: (0, version)})
        self.part = {"error_code": 0, "high_watermark": 9, "records": b"x"} | part
        self.asked: dict[str, Any] = {}
        self.version = -1
        self.times = 1
        #: Ids in requests -> those in responses.
        self.renamed: dict[bytes, bytes] = {}
        self.closed = False
        self.session_id = 0
        #: Topics of which the response has partition 0, though the request does not name it.
        self.unnamed: list[bytes] = []

    def abort(self) -> None:
        self.closed = True

    async def call(self, api: Any, body: dict[str, Any], *, version: int, views: bool = False, **_: Any) -> Any:
        self.version = version
        self.asked = decode_request(api, encode_request(api, version, body, correlation_id=1, client_id="c")[4:]).body
        responses = [
            {key: value for key, value in topic.items() if key != "partitions"}
            | {
                "partitions": [
                    self.part | {"partition_index": part["partition"]} for part in topic["partitions"] * self.times
                ]
            }
            for topic in self.asked["topics"]
        ]
        responses += [{"topic_id": each, "partitions": [self.part | {"partition_index": 0}]} for each in self.unnamed]
        for topic in responses:
            if "topic_id" in topic:
                topic["topic_id"] = self.renamed.get(topic["topic_id"], topic["topic_id"])
        answer: dict[str, Any] = {"responses": responses}
        if version >= 1:
            answer["throttle_time_ms"] = 20
        if version >= 7:
            answer["session_id"] = self.session_id
        data = encode_response(api, version, ResponseMessage(ResponseHeader(1), answer))
        return decode_response_body(api, version, memoryview(data[4:]) if views else data[4:])


def wanted(*, ids: bool = True) -> list[PartitionFetch]:
    places = [("t", 0, 5), ("u", 3, 6), ("t", 1, 7)]
    id_of = IDS if ids else dict.fromkeys(IDS, bytes(16))
    return [PartitionFetch(topic, number, offset, 100, 4, id_of[topic], 3) for topic, number, offset in places]


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_version_fetches_all_partitions(version: int) -> None:
    channel: Any = OneVersion(version)
    fetched = await fetch_partitions(channel, wanted(), max_bytes=250, max_wait=0.512, min_bytes=1, read_committed=True)
    expected = FetchedPartition(0, b"x", 9, ())
    assert fetched.partitions == {("t", 0): expected, ("t", 1): expected, ("u", 3): expected}
    assert (fetched.error, fetched.throttled) == (0, version >= 8)
    assert channel.version == version
    asked = channel.asked
    assert (asked["max_wait_ms"], asked["min_bytes"]) == (512, 1)
    assert asked.get("max_bytes", 250) == 250
    assert asked.get("isolation_level", 0) == (version >= 4)
    topics = {topic.get("topic") or NAMES[topic["topic_id"]]: topic["partitions"] for topic in asked["topics"]}
    assert [(part["partition"], part["fetch_offset"], part["partition_max_bytes"]) for part in topics["t"]] == [
        (0, 5, 100),
        (1, 7, 100),
    ]
    assert {part.get("current_leader_epoch", 4) for part in topics["u"]} == {4}
    assert {part.get("last_fetched_epoch") for part in topics["u"]} == {3 if version >= 12 else None}
    assert all(("topic_id" in topic) == (version >= 13) for topic in asked["topics"])


async def test_names_topics_where_an_id_is_unknown() -> None:
    channel: Any = OneVersion(VERSIONS[-1])
    fetched = await fetch_partitions(channel, [*wanted()[1:], *wanted(ids=False)[:1]], max_bytes=100)
    assert channel.version == 12
    assert sorted(fetched.partitions) == [("t", 0), ("t", 1), ("u", 3)]


@pytest.mark.parametrize("version", [4, 13])
async def test_readable_end_depends_on_the_isolation_level(version: int) -> None:
    aborted = [{"producer_id": 7, "first_offset": 3}]
    channel: Any = OneVersion(version, last_stable_offset=6, aborted_transactions=aborted)
    committed = await fetch_partitions(channel, wanted(), max_bytes=100, read_committed=True)
    assert committed.partitions["t", 0] == FetchedPartition(0, b"x", 6, ((7, 3),))
    everything = await fetch_partitions(channel, wanted(), max_bytes=100)
    assert everything.partitions["t", 0] == FetchedPartition(0, b"x", 9, ())


@pytest.mark.parametrize("version", [11, 18])
async def test_rejects_a_response_that_has_a_partition_twice(version: int) -> None:
    channel: Any = OneVersion(version)
    channel.times = 2
    with pytest.raises(BadFrameError, match="broker h:9 sent t/0 twice in a FETCH response") as caught:
        await fetch_partitions(channel, wanted(), max_bytes=100)
    assert caught.value.blamed
    assert channel.closed


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_view_of_the_response_is_given_for_a_record_set_that_is_most_of_it(version: int) -> None:
    channel: Any = OneVersion(version, records=b"r" * 10_000)
    place = ("t", 0)
    for views, kind in ((False, bytes), (True, memoryview)):
        fetched = await fetch_partitions(channel, wanted()[:1], max_bytes=100, views=views)
        assert type(fetched.partitions[place].data) is kind
        assert bytes(fetched.partitions[place].data) == b"r" * 10_000
    fetched = await fetch_partitions(channel, wanted(), max_bytes=100, views=True)
    assert [(type(part.data), part.data) for part in fetched.partitions.values()] == [(bytes, b"r" * 10_000)] * 3
    channel.part["records"] = b""
    fetched = await fetch_partitions(channel, wanted()[:1], max_bytes=100, views=True)
    assert fetched.partitions[place].data == b""


async def test_asks_for_an_answer_at_once_by_default() -> None:
    channel: Any = OneVersion(13)
    await fetch_partitions(channel, wanted(), max_bytes=100)
    assert (channel.asked["max_wait_ms"], channel.asked["min_bytes"]) == (0, 0)


async def test_leaves_out_a_topic_that_was_not_requested() -> None:
    channel: Any = OneVersion(13)
    channel.renamed = {IDS["u"]: b"\x09" * 16}
    fetched = await fetch_partitions(channel, wanted(), max_bytes=100)
    assert set(fetched.partitions) == {("t", 0), ("t", 1)}


@pytest.mark.parametrize("version", VERSIONS)
async def test_requests_are_in_a_session_where_versions_have_it(version: int) -> None:
    channel: Any = OneVersion(version)
    channel.session_id = 7 if version >= 7 else 0
    session = FetchSession()
    for entry in wanted():
        session.ask(entry)
    fetched = await fetch_partitions(channel, session.request(), max_bytes=100)
    assert set(fetched.partitions) == {("t", 0), ("t", 1), ("u", 3)}
    assert fetched.session_id == channel.session_id
    assert session.answered(fetched.error, fetched.session_id)
    assert channel.asked.get("session_epoch", 0) == channel.asked.get("session_id", 0) == 0
    session.drop(("t", 0))
    session.ask(wanted()[1]._replace(offset=9))
    fetched = await fetch_partitions(channel, session.request(), max_bytes=100)
    named = {
        (topic.get("topic") or NAMES[topic["topic_id"]], part["partition"]): part["fetch_offset"]
        for topic in channel.asked["topics"]
        for part in topic["partitions"]
    }
    if version < 7:  # all each time
        assert named == {("t", 1): 7, ("u", 3): 9}
        return
    assert named == {("u", 3): 9}
    assert (channel.asked["session_id"], channel.asked["session_epoch"]) == (7, 1)
    forgotten = {"topic": "t"} if version < 13 else {"topic_id": IDS["t"]}
    assert channel.asked["forgotten_topics_data"] == [forgotten | {"partitions": [0]}]


@pytest.mark.parametrize("version", [7, 18])
async def test_requests_without_a_session_begin_none(version: int) -> None:
    channel: Any = OneVersion(version)
    await fetch_partitions(channel, wanted(), max_bytes=100)
    assert (channel.asked["session_id"], channel.asked["session_epoch"]) == (0, -1)
    assert channel.asked["forgotten_topics_data"] == []


async def test_response_in_a_session_may_have_partitions_that_the_request_does_not_name() -> None:
    channel: Any = OneVersion(18)
    session = FetchSession()
    for entry in wanted():
        session.ask(entry)
    session.request()
    session.answered(0, 7)
    channel.unnamed = [IDS["t"]]
    fetched = await fetch_partitions(channel, session.request(), max_bytes=100)
    assert set(fetched.partitions) == {("t", 0)}


@pytest.mark.parametrize(("version", "named"), [(10, False), (11, True), (12, True)])
async def test_rack_is_sent_where_brokers_take_it_and_the_preferred_replica_is_read(version: int, named: bool) -> None:
    channel: Any = OneVersion(version, **({"preferred_read_replica": 7} if named else {}))
    fetched = await fetch_partitions(channel, wanted()[:1], max_bytes=100, rack="ours")
    assert channel.asked.get("rack_id", "") == ("ours" if named else "")
    assert fetched.partitions["t", 0].preferred == (7 if named else -1)
