"""Offsets in Kafka while the coordinator moves and the member that commits changes: asked of a client in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumerd.base.errors import BrokerError
from consumerd.base.partition import LogId, TopicPartition
from consumerd.base.settings.group import CommitSection
from consumerd.member.offsets.errors import OffsetsUnavailableError
from consumerd.member.offsets.kafka_store import CommittedOffset, KafkaOffsetStore
from consumerd.member.offsets.metadata import OffsetNotes
from consumerd.member.offsets.store import CommitResult
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import BrokerRefusedError, error_of
from consumerd.net.errors import ConnectionClosedError
from consumerd.wire.v08.apis import OFFSET_COMMIT, OFFSET_FETCH
from consumerd.wire.v08.errors import UnsupportedApiError
from consumerd.wire.v08.messages import decode_request, encode_request
from consumerd.wire.v08.schema import NO_UUID, Api
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions

PLACE = TopicPartition.numbered("t", 0)


class Versions:
    def pick(self, api: Api[Any, Any], *, at_least: int = 0, at_most: int | None = None) -> int:
        assert at_least <= api.versions[1]
        return api.versions[1] if at_most is None else at_most


class Cluster:
    """A client of one broker, its channel and its coordinator in one; `answers` are taken in turn."""

    address = "a:1"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Api[Any, Any], int, dict[str, Any]]] = []
        self.versions: Versions | BrokerVersions = Versions()
        self.forgotten = 0
        #: Happens while the channel is opened.
        self.meanwhile: Callable[[], None] = lambda: None
        self.known: list[int | Exception] = []
        self.ids: dict[str, bytes] = {}
        self.old: list[str] = []

    def known_topic_id(self, topic: str) -> bytes:
        return self.ids.get(topic, NO_UUID)

    def stale(self, topics: list[str]) -> None:
        self.old += topics

    async def coordinator(self, group: str) -> int:
        found = self.known.pop(0) if self.known else 1
        if isinstance(found, Exception):
            raise found
        return found

    async def any_channel(self) -> Cluster:
        return self

    async def node_channel(self, node_id: int) -> Cluster:
        self.meanwhile()
        return self

    def forget_coordinator(self, group: str) -> None:
        self.forgotten += 1

    async def call(self, api: Api[Any, Any], body: dict[str, Any], *, version: int) -> dict[str, Any]:
        encode_request(api, version, body, correlation_id=0, client_id="a test")  # it can be made
        self.asked.append((api, version, body))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if api is OFFSET_FETCH and version >= 8 and "groups" not in answer:
            return {"groups": [{"group_id": "g", "error_code": 0, **answer}]}
        return cast("dict[str, Any]", answer)


def store(cluster: Cluster, membership: Any = None, **options: Any) -> KafkaOffsetStore:
    return KafkaOffsetStore(cast("ClusterClient", cluster), "g", membership, CommitSection(**options))


def told(code: int, **fields: Any) -> dict[str, Any]:
    """An answer about one partition."""
    return {"topics": [{"name": "t", "partitions": [part_of(code, **fields)]}]}


def part_of(code: int, **fields: Any) -> dict[str, Any]:
    return {"partition_index": 0, "committed_offset": -1, "metadata": "", "error_code": code, **fields}


class Membership:
    """In its first generation."""

    session_id, generation, member_id = 1, 5, "me"
    instance_id: str | None = None


async def test_commits_in_generation_of_request() -> None:
    """Looking for a coordinator may take longer than the membership lasts: the next one has not earned the offsets."""
    member = Membership()
    cluster = Cluster(told(22))

    def rejoin() -> None:
        member.session_id, member.generation, member.member_id = 2, 6, "me again"

    cluster.meanwhile = rejoin
    result = await store(cluster, member).commit({PLACE: 9}, session_id=1)
    assert result == CommitResult(frozenset(), frozenset({PLACE}))
    for api, _, body in cluster.asked:
        assert (api, body["generation_id_or_member_epoch"], body["member_id"]) == (OFFSET_COMMIT, 5, "me")


async def test_skips_commit_of_ended_session() -> None:
    """The generation of today has not earned what was handled in another: its coordinator would take the offset."""
    member = Membership()
    cluster = Cluster(told(0))
    for session_id in (0, 2):
        result = await store(cluster, member).commit({PLACE: 9}, session_id=session_id)
        assert result == CommitResult(frozenset(), frozenset({PLACE}))
    assert cluster.asked == []


@pytest.mark.parametrize(("version", "named"), [(1, False), (2, False), (None, True)])
async def test_sends_instance_id_where_version_has_it(version: Any, named: bool) -> None:
    """Its id and generation fence it in any case."""
    member = Membership()
    member.instance_id = "i"
    cluster = Cluster(told(0))
    result = await store(cluster, member, version=version).commit({PLACE: 9}, session_id=1)
    assert result.committed == {PLACE}
    ((_, _, body),) = cluster.asked
    assert body["member_id"] == "me"
    assert ("group_instance_id" in body) is named


async def test_reports_unavailable_when_coordinator_is_forgotten() -> None:
    """A heartbeat may find out first, and its successor may be unknown still."""
    nobody = error_of(15, "no coordinator")
    assert nobody is not None
    cluster = Cluster(told(16))
    cluster.known = [1, nobody]
    with pytest.raises(OffsetsUnavailableError):
        await store(cluster).commit({PLACE: 9}, session_id=0)
    cluster = Cluster(told(16))
    cluster.known = [1, BrokerError("broker 1 is not alive")]
    with pytest.raises(OffsetsUnavailableError):
        await store(cluster).load([PLACE])


async def test_forgets_coordinator_after_disconnect() -> None:
    cluster = Cluster(ConnectionClosedError("gone"))
    with pytest.raises(OffsetsUnavailableError, match="gone"):
        await store(cluster).commit({PLACE: 9}, session_id=0)
    assert cluster.forgotten == 1


async def test_retries_load_while_coordinator_does_not_know_topic() -> None:
    """0.8.2 right after its start. Only where brokers look into ZooKeeper it is how they say that there is none."""
    with pytest.raises(OffsetsUnavailableError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        await store(Cluster(told(3, committed_offset=-1, metadata="")), version=1).load([PLACE])
    assert await store(Cluster(told(0, committed_offset=-1, metadata="")), version=1).load([PLACE]) == {}
    assert await store(Cluster(told(3, committed_offset=-1, metadata="")), version=0).load([PLACE]) == {}


async def test_partition_that_is_missing_from_an_answer_is_not_one_without_an_offset() -> None:
    with pytest.raises(OffsetsUnavailableError, match="u/3 is missing from the answer"):
        await store(Cluster(told(0, committed_offset=4, metadata=""))).load([PLACE, OTHER])


async def test_reports_how_long_brokers_keep_offsets() -> None:
    """Brokers delete offsets by age, also in groups with members, and also those of idle partitions."""
    by_default = store(Cluster()).keeps_for
    assert by_default is not None
    assert by_default < 3600  # offsets.retention.minutes is a day by default, a week later on
    assert store(Cluster(), retention=60.0).keeps_for == 60.0
    assert store(Cluster(), retention=1e9).keeps_for == by_default  # brokers after 2.0 do not listen
    assert store(Cluster(), version=0).keeps_for is None


@pytest.mark.parametrize("code", [-1, 7, 14, 15, 16, 27, 113, 999])
async def test_retries_transient_broker_errors(code: int) -> None:
    with pytest.raises(OffsetsUnavailableError):
        await store(Cluster(told(code))).commit({PLACE: 1}, session_id=0)
    with pytest.raises(OffsetsUnavailableError):
        await store(Cluster(told(code, committed_offset=-1, metadata=""))).load([PLACE])
    cluster = Cluster()
    refusal = error_of(code, "no coordinator is named")
    assert refusal is not None
    cluster.known = [refusal]
    with pytest.raises(OffsetsUnavailableError):
        await store(cluster).commit({PLACE: 1}, session_id=0)


@pytest.mark.parametrize("code", [12, 28, 30, 35])
async def test_reports_permanent_broker_errors_as_refusal(code: int) -> None:
    with pytest.raises(BrokerRefusedError) as caught:
        await store(Cluster(told(code))).commit({PLACE: 1}, session_id=0)
    assert caught.value.code == code


OTHER = TopicPartition.numbered("u", 3)


async def test_permission_that_is_taken_away_later_may_come_back() -> None:
    cluster = Cluster(told(0), told(30))
    offsets = store(cluster)
    assert (await offsets.commit({PLACE: 1}, session_id=0)).committed
    with pytest.raises(OffsetsUnavailableError, match="GROUP_AUTHORIZATION_FAILED"):
        await offsets.commit({PLACE: 2}, session_id=0)
    refusal = error_of(30, "no coordinator is named")
    assert refusal is not None
    cluster.known = [refusal]
    with pytest.raises(OffsetsUnavailableError, match="GROUP_AUTHORIZATION_FAILED"):
        await offsets.load([PLACE])


async def test_commit_request_has_all_that_a_coordinator_keeps() -> None:
    cluster = Cluster(told(0))
    await store(cluster, metadata="why", retention=1.5, version=2).commit({PLACE: 9, OTHER: 4}, session_id=0)
    ((api, version, body),) = cluster.asked
    unknown_log = {"committed_leader_epoch": -1, "committed_metadata": "why"}
    no_id = {"topic_id": NO_UUID}
    assert (api, version) == (OFFSET_COMMIT, 2)
    assert body == {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time_ms": 1500,
        "topics": [
            {"name": "t", **no_id, "partitions": [{"partition_index": 0, "committed_offset": 9, **unknown_log}]},
            {"name": "u", **no_id, "partitions": [{"partition_index": 3, "committed_offset": 4, **unknown_log}]},
        ],
    }
    cluster = Cluster(told(0))
    await store(cluster).commit({PLACE: 9}, session_id=0)
    assert cluster.asked[0][2]["retention_time_ms"] == -1  # as the broker's configuration says
    assert cluster.asked[0][2]["topics"][0]["partitions"][0]["committed_metadata"] == ""


async def test_commits_the_log_of_a_position_with_it() -> None:
    """Brokers keep the leader epoch, for members of every kind; the topic id has no place but the metadata."""
    cluster = Cluster(told(0))
    topic_id = bytes(range(16))
    notes = {PLACE: OffsetNotes(LogId(topic_id, 4)), OTHER: OffsetNotes(LogId(None, 5), start=True)}
    await store(cluster, metadata="why").commit({PLACE: 9, OTHER: 4}, session_id=0, notes=notes)
    parts = [topic["partitions"][0] for topic in cluster.asked[0][2]["topics"]]
    assert [part["committed_leader_epoch"] for part in parts] == [4, 5]
    assert [part["committed_metadata"] for part in parts] == ["why topic-id=AAECAwQFBgcICQoLDA0ODw", "why start=latest"]


ONE, TWO = bytes([1] * 16), bytes([2] * 16)


@pytest.mark.parametrize(
    ("served", "ids", "noted", "asked"),
    [
        (9, {"t": ONE, "u": TWO}, None, 9),
        (10, {"t": ONE}, None, 9),
        (10, {"t": ONE, "u": TWO}, None, 10),
        (10, {"u": TWO}, ONE, 10),  # the position's own
        (10, {"t": TWO, "u": TWO}, ONE, 10),
    ],
)
async def test_commits_by_topic_id_where_all_are_known(
    served: int, ids: dict[str, bytes], noted: bytes | None, asked: int
) -> None:
    topics = [("t", ONE, 0), ("u", TWO, 3)]
    rows = [
        {"topic_id" if asked == 10 else "name": topic_id if asked == 10 else name,
         "partitions": [{"partition_index": number, "error_code": 0}]}
        for name, topic_id, number in topics
    ]  # fmt: skip
    cluster = Cluster({"topics": rows})
    cluster.versions, cluster.ids = older_broker(served, 8), ids
    notes = {PLACE: OffsetNotes(LogId(noted))}
    result = await store(cluster).commit({PLACE: 9, OTHER: 4}, session_id=0, notes=notes)
    assert result == CommitResult(frozenset({PLACE, OTHER}), frozenset())
    ((_, version, body),) = cluster.asked
    data = encode_request(OFFSET_COMMIT, version, body, correlation_id=0, client_id=None)
    sent = decode_request(OFFSET_COMMIT, data[4:]).body["topics"]
    assert (version, [each.get("topic_id", each.get("name")) for each in sent]) == (
        asked,
        [topic_id if asked == 10 else name for name, topic_id, _ in topics],
    )


async def test_position_of_a_topic_that_was_created_again_is_refused_and_holds_back_no_other() -> None:
    answer = [(ONE, 0, 100), (TWO, 3, 0)]
    cluster = Cluster(
        {
            "topics": [
                {"topic_id": topic_id, "partitions": [{"partition_index": number, "error_code": code}]}
                for topic_id, number, code in answer
            ]
        }
    )
    cluster.versions, cluster.ids = older_broker(10, 8), {"t": bytes([3] * 16), "u": TWO}
    notes = {PLACE: OffsetNotes(LogId(ONE))}
    result = await store(cluster).commit({PLACE: 9, OTHER: 4}, session_id=0, notes=notes)
    assert (result.committed, result.lost, [*result.refused]) == (frozenset({OTHER}), frozenset(), [PLACE])
    assert "UNKNOWN_TOPIC_ID" in str(result.refused[PLACE])
    assert cluster.old == ["t"]


async def test_commits_the_epoch_in_the_metadata_where_the_request_has_no_field_for_it() -> None:
    cluster = Cluster(told(0), told(0))
    for log in (LogId(bytes(range(16)), 4), LogId(None, 4)):
        await store(cluster, version=2).commit({PLACE: 9}, session_id=0, notes={PLACE: OffsetNotes(log)})
    texts = [body["topics"][0]["partitions"][0]["committed_metadata"] for _, _, body in cluster.asked]
    assert texts == ["topic-id=AAECAwQFBgcICQoLDA0ODw leader-epoch=4", "leader-epoch=4"]


@pytest.mark.parametrize(
    ("stored", "log"),
    [
        ({"metadata": "topic-id=AAECAwQFBgcICQoLDA0ODw leader-epoch=4"}, LogId(bytes(range(16)), 4)),
        ({"metadata": "why leader-epoch=4"}, LogId(None, 4)),
        ({"metadata": "why leader-epoch=4", "committed_leader_epoch": 5}, LogId(None, 5)),
        ({"metadata": "topic-id=AAECAwQFBgcICQoLDA0ODw", "committed_leader_epoch": 4}, LogId(bytes(range(16)), 4)),
        ({"metadata": "why topic-id=AAECAwQFBgcICQoLDA0ODw"}, LogId(bytes(range(16)))),
        ({"metadata": "another topic-id=AAECAwQFBgcICQoLDA0ODw text", "committed_leader_epoch": -1}, LogId()),
        ({"metadata": "topic-id=AAECAwQFBgcICQoLDA0O"}, LogId()),
        ({"metadata": None, "committed_leader_epoch": 0}, LogId(None, 0)),
    ],
)
async def test_loads_the_log_of_an_offset_with_it(stored: dict[str, Any], log: LogId) -> None:
    cluster = Cluster(told(0, committed_offset=9, **stored))
    made = store(cluster)
    assert made.log(PLACE) == LogId()
    assert await made.load([PLACE]) == {PLACE: 9}
    assert made.log(PLACE) == log


async def test_reports_only_partitions_that_were_to_be_committed() -> None:
    """A broker that answers for others does not make them committed, or lost."""
    parts = [{"partition_index": number, "error_code": code} for number, code in enumerate((0, 25, 0, 25))]
    answer = {"topics": [{"name": "t", "partitions": parts}]}
    wanted = {TopicPartition.numbered("t", number): 1 for number in (0, 1)}
    result = await store(Cluster(answer)).commit(wanted, session_id=0)
    assert result == CommitResult(frozenset({PLACE}), frozenset({TopicPartition.numbered("t", 1)}))


@pytest.mark.parametrize("code", [25, 110, 113])
async def test_member_reads_in_its_own_name_and_waits_when_its_epoch_is_not_the_present_one(code: int) -> None:
    refused = {"groups": [{"group_id": "g", "error_code": code, "topics": []}]}
    cluster = Cluster(refused)
    with pytest.raises(OffsetsUnavailableError):
        await store(cluster, Membership()).load([PLACE])
    ((_, version, body),) = cluster.asked
    assert version == 9
    assert (body["groups"][0]["member_id"], body["groups"][0]["member_epoch"]) == ("me", 5)


@pytest.mark.parametrize("code", [22, 25, 82, 110])
async def test_commit_of_a_member_that_was_thrown_out_is_lost(code: int) -> None:
    result = await store(Cluster(told(code)), Membership()).commit({PLACE: 1}, session_id=1)
    assert result == CommitResult(frozenset(), frozenset({PLACE}))


async def test_loads_offsets_with_their_metadata() -> None:
    answer = {
        "topics": [
            {
                "name": "t",
                "partitions": [{"partition_index": 0, "error_code": 0, "committed_offset": 0, "metadata": "x"}],
            },
            {
                "name": "u",
                "partitions": [{"partition_index": 3, "error_code": 0, "committed_offset": 8, "metadata": ""}],
            },
        ]
    }
    cluster = Cluster(answer, answer)
    found = await store(cluster).read([PLACE, OTHER])
    assert found == {PLACE: CommittedOffset(0, "x"), OTHER: CommittedOffset(8, "")}
    assert await store(cluster).peek([PLACE, OTHER]) == {PLACE: 0, OTHER: 8}


@pytest.mark.parametrize(("commits", "fetches"), [(0, 0), (1, 1), (2, 1)])
async def test_reads_with_the_version_that_belongs_to_the_one_of_commits(commits: Any, fetches: int) -> None:
    cluster = Cluster(told(0, committed_offset=-1, metadata=""))
    assert await store(cluster, version=commits).load([PLACE]) == {}
    ((api, version, body),) = cluster.asked
    assert (api, version, body["group_id"]) == (OFFSET_FETCH, fetches, "g")
    assert body["topics"] == [{"name": "t", "partition_indexes": [0]}]


@pytest.mark.parametrize("version", [None, 1])
async def test_reads_all_offsets_of_the_group_with_the_newest_version(version: Any) -> None:
    cluster = Cluster({"error_code": 0, "topics": []})
    assert await store(cluster, version=version).read(None) == {}
    ((_, asked, body),) = cluster.asked
    assert (asked, body) == (9, {"groups": [{"group_id": "g", "topics": None}]})


@pytest.mark.parametrize(("served", "ids", "asked"), [(7, True, 7), (8, True, 8), (10, False, 9), (10, True, 10)])
async def test_reads_with_the_newest_version_and_by_topic_id_where_all_are_known(
    served: int, ids: bool, asked: int
) -> None:
    one, other = bytes([1] * 16), bytes([2] * 16)
    topics = [
        ({"name": "t"}, {"topic_id": one}, {"partition_index": 0, "committed_offset": 3, "metadata": "x"}),
        ({"name": "u"}, {"topic_id": other}, {"partition_index": 3, "committed_offset": 8, "metadata": ""}),
    ]
    rows = [
        {**(by_id if asked == 10 else name), "partitions": [{**part, "error_code": 0}]} for name, by_id, part in topics
    ]
    cluster = Cluster({"error_code": 0, "topics": rows})
    cluster.versions = older_broker(8, served)
    cluster.ids = {"t": one} | ({"u": other} if ids else {})
    assert await store(cluster).read([PLACE, OTHER]) == {PLACE: CommittedOffset(3, "x"), OTHER: CommittedOffset(8, "")}
    ((_, version, body),) = cluster.asked
    data = encode_request(OFFSET_FETCH, version, body, correlation_id=0, client_id=None)
    sent = decode_request(OFFSET_FETCH, data[4:]).body
    of_group: Any = sent if asked < 8 else sent["groups"][0]
    assert (version, of_group["group_id"]) == (asked, "g")
    assert of_group["topics"] == [
        {**(by_id if asked == 10 else name), "partition_indexes": [part["partition_index"]]}
        for name, by_id, part in topics
    ]


async def test_reads_again_by_name_after_the_coordinator_does_not_know_a_topic_id() -> None:
    cluster = Cluster({"topics": [{"topic_id": bytes([1] * 16), "partitions": [part_of(100)]}]})
    cluster.ids = {"t": bytes([1] * 16)}
    with pytest.raises(OffsetsUnavailableError, match="UNKNOWN_TOPIC_ID"):
        await store(cluster).load([PLACE])
    assert cluster.old == ["t"]


@pytest.mark.parametrize("number", [0, 2])
async def test_rejects_a_response_that_is_not_about_one_group(number: int) -> None:
    cluster = Cluster({"groups": [{"group_id": "g", "error_code": 0, "topics": []}] * number})
    with pytest.raises(BrokerError, match=f"the broker returned {number} groups instead of one"):
        await store(cluster).load([PLACE])


@pytest.mark.parametrize(("code", "forgotten"), [(15, 1), (16, 1), (14, 0), (27, 0)])
async def test_forgets_coordinator_that_has_moved(code: int, forgotten: int) -> None:
    for answer in (told(code, committed_offset=-1, metadata=""), {"error_code": code, "topics": []}):
        cluster = Cluster(answer)
        with pytest.raises(OffsetsUnavailableError):
            await store(cluster).load([PLACE])
        assert cluster.forgotten == forgotten


async def test_forgets_coordinator_that_cannot_be_reached() -> None:
    cluster = Cluster()
    cluster.known = [BrokerError("broker 1 is not alive")]
    with pytest.raises(OffsetsUnavailableError, match="not alive"):
        await store(cluster).load([PLACE])
    assert cluster.forgotten == 1


async def test_raises_permanent_refusal_of_the_coordinator_s_lookup() -> None:
    cluster = Cluster()
    refusal = error_of(30, "the group may not be read")
    assert refusal is not None
    cluster.known = [refusal]
    with pytest.raises(BrokerRefusedError):
        await store(cluster).load([PLACE])
    assert cluster.forgotten == 0


async def test_version_0_needs_no_coordinator() -> None:
    """It is any broker's access to ZooKeeper."""
    cluster = Cluster(told(0))
    cluster.known = [BrokerError("there is no coordinator")]
    assert (await store(cluster, version=0).commit({PLACE: 1}, session_id=0)).committed == {PLACE}
    assert cluster.asked[0][1] == 0


def older_broker(commit: int, fetch: int) -> BrokerVersions:
    """The versions of a broker whose newest of OFFSET_COMMIT and OFFSET_FETCH these are."""
    ranges = {OFFSET_COMMIT.key: (0, commit), OFFSET_FETCH.key: (0, fetch)}
    return BrokerVersions("a:1", BrokerRelease.V0_10_OR_NEWER, ranges)


@pytest.mark.parametrize(("served", "asked", "named"), [(1, 1, False), (6, 6, False), (7, 7, True), (10, 9, True)])
async def test_commits_with_the_newest_version_that_names_topics(served: int, asked: int, named: bool) -> None:
    """Version 10 has topic ids in their place; from version 7 on a static member is named."""
    member = Membership()
    member.instance_id = "i"
    cluster = Cluster(told(0))
    cluster.versions = older_broker(served, 7)
    assert (await store(cluster, member).commit({PLACE: 9}, session_id=1)).committed == {PLACE}
    ((_, version, body),) = cluster.asked
    assert version == asked
    assert ("group_instance_id" in body) is named


@pytest.mark.parametrize("served", [1, 2, 3])
async def test_reads_with_the_newest_version_of_an_older_broker(served: int) -> None:
    cluster = Cluster(told(0, committed_offset=8, metadata=""))
    cluster.versions = older_broker(2, served)
    assert await store(cluster).load([PLACE]) == {PLACE: 8}
    ((_, version, body),) = cluster.asked
    assert version == served
    assert body["topics"] == [{"name": "t", "partition_indexes": [0]}]


@pytest.mark.parametrize(("served", "waits"), [(6, False), (7, True), (9, True)])
@pytest.mark.parametrize("is_member", [True, False])
async def test_a_member_reads_no_offset_that_an_open_transaction_may_change(
    served: int, waits: bool, is_member: bool
) -> None:
    answer = told(0, committed_offset=8, metadata="")
    cluster = Cluster({"groups": [{"error_code": 0, **answer}]} if served > 7 else answer)
    cluster.versions = older_broker(2, served)
    assert await store(cluster, Membership() if is_member else None).load([PLACE]) == {PLACE: 8}
    ((_, version, body),) = cluster.asked
    assert (version, body.get("require_stable", False)) == (served, waits and is_member)


async def test_reads_all_offsets_of_the_group_since_version_2() -> None:
    cluster = Cluster({"error_code": 0, "topics": []})
    cluster.versions = older_broker(2, 2)
    assert await store(cluster).read(None) == {}
    assert cluster.asked[0][1] == 2
    cluster.versions = older_broker(2, 1)
    with pytest.raises(UnsupportedApiError, match="OffsetFetch in versions 0 to 1"):
        await store(cluster).read(None)


async def test_never_takes_a_broker_for_a_store_in_zookeeper() -> None:
    """Version 0, which is all that such a broker has, is another store."""
    cluster = Cluster()
    cluster.versions = older_broker(0, 0)
    with pytest.raises(UnsupportedApiError):
        await store(cluster).commit({PLACE: 9}, session_id=0)
    with pytest.raises(UnsupportedApiError):
        await store(cluster).load([PLACE])


async def test_reports_no_offsets_as_written_by_others() -> None:
    """The coordinator has no versions of offsets: it refuses the commits of others than members."""
    assert await store(Cluster()).changed([PLACE]) == frozenset()


def two_topics(code: int, **fields: Any) -> dict[str, Any]:
    """An answer with `code` for `u`, and without an error for `t`."""
    return {
        "topics": [
            {"name": "u", "partitions": [{"partition_index": 3, "error_code": code, **fields}]},
            {"name": "t", "partitions": [{"partition_index": 0, "error_code": 0, **fields}]},
        ]
    }


async def test_missing_permission_on_a_topic_refuses_its_partitions_alone() -> None:
    result = await store(Cluster(two_topics(29))).commit({PLACE: 1, OTHER: 2}, session_id=0)
    assert (set(result.committed), set(result.lost), list(result.refused)) == ({PLACE}, set(), [OTHER])
    assert str(result.refused[OTHER]) == (
        "the offsets of group 'g' cannot be written: u/3: TOPIC_AUTHORIZATION_FAILED (error 29): the client lacks the "
        "permission Read on the topic 'u'"
    )


async def test_names_the_topic_whose_offsets_may_not_be_read() -> None:
    with pytest.raises(BrokerRefusedError, match="lacks the permission Describe on the topic 'u'"):
        await store(Cluster(two_topics(29, committed_offset=8, metadata=""))).load([PLACE, OTHER])


class Topic(Cluster):
    """One topic of 200 partitions, of which `handled` have offsets of handled messages; it takes a turn to look."""

    def __init__(self, *handled: int) -> None:
        super().__init__()
        self.handled = handled

    async def topics(self, names: list[str]) -> Any:
        await asyncio.sleep(0)
        return SimpleNamespace(topics={names[0]: SimpleNamespace(partitions=range(200))})

    async def call(self, api: Api[Any, Any], body: dict[str, Any], *, version: int) -> dict[str, Any]:
        parts = [
            part_of(0, committed_offset=7 if n in self.handled else -1) | {"partition_index": n} for n in range(200)
        ]
        self.answers.append({"error_code": 0, "topics": [{"name": "t", "partitions": parts}]})
        return await super().call(api, body, version=version)


async def test_partitions_that_begin_together_look_for_other_offsets_once() -> None:
    for handled, others in (((), []), ((5,), [n for n in range(200) if n != 5]), ((5, 6), list(range(200)))):
        cluster = Topic(*handled)
        offsets = store(cluster)
        places = [TopicPartition.numbered("t", number) for number in range(200)]
        first = asyncio.create_task(offsets.is_new(places[0]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        found = [*await asyncio.gather(*map(offsets.is_new, places[1:])), await first]
        assert [number for number, new in enumerate(found[-1:] + found[:-1]) if new] == others
        assert len(cluster.asked) == 2, "the read that had begun when the others asked may miss what they would see"
        await offsets.is_new(PLACE)
        assert len(cluster.asked) == 3


async def test_look_for_other_offsets_is_repeated_when_the_first_one_fails() -> None:
    cluster = Topic(5)
    offsets = store(cluster)
    cluster.known = [BrokerError("away"), 1]
    found = await asyncio.gather(*[offsets.is_new(PLACE) for _ in range(3)], return_exceptions=True)
    assert {type(error) for error in found} == {OffsetsUnavailableError}
    assert await offsets.is_new(PLACE)
    assert len(cluster.asked) == 1
