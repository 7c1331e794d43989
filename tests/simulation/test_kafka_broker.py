"""What simulated brokers answer once a log is another one: as Kafka's own brokers do."""

from __future__ import annotations

import random
from typing import Any

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.wire.v08 import Api, ErrorCode, decode_response, encode_request
from consumerd.wire.v08.apis import (
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
)
from consumerd.wire.v08.records import decode_records
from consumerd.wire.v08.schema import NO_UUID
from tests.simulation.kafka_broker import ERAS, Era, SimulatedKafka
from tests.simulation.kafka_log import EpochEnd, PartitionLog
from tests.simulation.kernel import Kernel
from tests.simulation.network import Line, Network

EVENTS = TopicPartition.numbered("events", 0)
EARLIEST, LATEST = -2, -1
FENCED, UNKNOWN_EPOCH, INCONSISTENT_ID = 74, 75, 103
WITHOUT_IDS, WITH_IDS = ERAS[2], ERAS[3]
LAG = 0.05


class Place:
    """A cluster of two brokers with one topic of one partition, led by broker 0; and a client that is its own link."""

    client = "client"

    def __init__(self, era: Era = WITHOUT_IDS) -> None:
        self.kernel = Kernel()
        network = Network(self.kernel, random.Random(1))
        self.kafka = SimulatedKafka(self.kernel, network, era, metadata_lag=LAG)
        self.rng = random.Random(1)
        for number in range(2):
            self.kafka.add_broker(number, Line())
        self.make_topic(1)
        self.answers: list[bytes] = []

    def make_topic(self, partitions: int) -> None:
        """Led by broker 0."""
        for partition in self.kafka.add_partitions("events", partitions, self.rng):
            log = self.kafka.log(partition)
            log.leader, log.told = 0, (0, 0)

    def append(self, count: int) -> None:
        for _ in range(count):
            self.kafka.append(EVENTS, b"message")

    def send(self, frame: bytes) -> None:
        """As the link of the connection: an answer came."""
        self.answers.append(frame)

    def close(self) -> None:
        """As the link of the connection: the broker has closed it."""
        raise AssertionError("the broker hangs up")

    def begin(self, api: Api[Any, Any], version: int, body: dict[str, Any], *, broker: int = 0) -> None:
        """Send a request."""
        connection = self.kafka.brokers[broker]._accept(self)  # type: ignore[arg-type]
        connection.received(encode_request(api, version, body, correlation_id=1, client_id="c"))
        self.kernel.run(0.001)

    def ask(
        self,
        api: Api[Any, Any],
        body: dict[str, Any],
        *,
        broker: int = 0,
        version: int | None = None,
        at_once: bool = True,
    ) -> Any:
        """The answer, in the newest version."""
        newest = self.kafka.era.versions[api][1] if version is None else version
        self.begin(api, newest, body, broker=broker)
        if not at_once:
            self.kernel.run(1.0)
        (frame,), self.answers = self.answers, []
        return decode_response(api, newest, frame[4:]).body

    def fetch(
        self,
        offset: int,
        *,
        current: int = -1,
        read: int = -1,
        topic_id: bytes = NO_UUID,
        number: int = 0,
        broker: int = 0,
        at_once: bool = True,
    ) -> Any:
        """What is answered for the partition. `current`, `read`: the epochs of the leader and of the last message."""
        body = self.fetch_body(offset, current, read, topic_id, number)
        (topic,) = self.ask(FETCH, body, broker=broker, at_once=at_once)["responses"]
        (part,) = topic["partitions"]
        assert part["partition_index"] == number
        return dict(part)

    def fetch_body(
        self, offset: int, current: int = -1, read: int = -1, topic_id: bytes = NO_UUID, number: int = 0
    ) -> dict[str, Any]:
        part = {"partition": number, "current_leader_epoch": current, "fetch_offset": offset}
        part |= {"last_fetched_epoch": read, "partition_max_bytes": 1 << 20}
        topic = {"topic": "events", "topic_id": topic_id, "partitions": [part]}
        return {"max_wait_ms": 500, "min_bytes": 1, "topics": [topic]}

    def end_of(self, epoch: int, current: int = -1) -> tuple[int, int, int]:
        part = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
        body = {"topics": [{"topic": "events", "partitions": [part]}]}
        (answer,) = self.ask(OFFSET_FOR_LEADER_EPOCH, body)["topics"][0]["partitions"]
        return answer["error_code"], answer["leader_epoch"], answer["end_offset"]

    def listed(self, time: int, current: int = -1) -> tuple[int, int, int]:
        part = {"partition_index": 0, "current_leader_epoch": current, "timestamp": time}
        body = {"topics": [{"name": "events", "partitions": [part]}]}
        (answer,) = self.ask(LIST_OFFSETS, body)["topics"][0]["partitions"]
        return answer["error_code"], answer["offset"], answer["leader_epoch"]

    def told(self) -> dict[str, Any]:
        """The topic in the metadata."""
        topics: Any = [{"name": "events"}]
        (topic,) = self.ask(METADATA, {"topics": topics})["topics"]
        return dict(topic)

    def commit(self, number: int, offset: int, epoch: int) -> int:
        part = {
            "partition_index": number,
            "committed_offset": offset,
            "committed_leader_epoch": epoch,
            "committed_metadata": f"at {offset}",
        }
        body = {"group_id": "group", "topics": [{"name": "events", "partitions": [part]}]}
        (answer,) = self.ask(OFFSET_COMMIT, body)["topics"][0]["partitions"]
        return int(answer["error_code"])

    def committed(self) -> tuple[int, int, str]:
        body = {"group_id": "group", "topics": [{"name": "events", "partition_indexes": [0]}]}
        (answer,) = self.ask(OFFSET_FETCH, body)["topics"][0]["partitions"]
        return answer["committed_offset"], answer["committed_leader_epoch"], answer["metadata"]


# -- epochs


def test_messages_have_the_epoch_of_the_leader_that_wrote_them() -> None:
    place = Place()
    place.append(2)
    place.kafka.lead(EVENTS, 1)
    place.kafka.lead(EVENTS, 0)  # nothing was written in the epoch before
    place.append(1)
    data = place.fetch(0, current=2)["records"]
    sizes = [len(place.kafka.log(EVENTS).read(offset, 1, batches=True)) for offset in range(3)]
    epochs = []
    for size in sizes:
        epochs.append(int.from_bytes(data[12:16], "big", signed=True))
        data = data[size:]
    assert epochs == [0, 0, 2]
    assert not data


def test_tells_where_epochs_end() -> None:
    place = Place()
    place.append(2)
    for leader in (1, None, 0):  # epochs 1 to 3; 1 and 2 have no messages
        place.kafka.lead(EVENTS, leader)
    place.append(3)
    assert place.end_of(0) == (0, 0, 2)
    assert place.end_of(1) == (0, 0, 2)
    assert place.end_of(3) == (0, 3, 5)
    assert place.end_of(4) == (0, -1, -1)
    assert place.end_of(-1) == (0, -1, -1)
    assert place.listed(EARLIEST) == (0, 0, 0)
    assert place.listed(LATEST) == (0, 5, 3)


def test_an_epoch_before_all_others_ends_where_they_begin() -> None:
    log = PartitionLog(0)
    log.elect(1)
    assert log.end_of(0) == EpochEnd(0, 0)  # as brokers answer whose first messages are deleted


@pytest.mark.parametrize(("current", "code"), [(1, FENCED), (3, UNKNOWN_EPOCH), (2, 0), (-1, 0)])
def test_fences_requests_by_the_epoch_of_the_leader(current: int, code: int) -> None:
    place = Place()
    place.kafka.lead(EVENTS, 1)
    place.kafka.lead(EVENTS, 0)
    place.append(1)
    assert place.fetch(0, current=current)["error_code"] == code
    assert place.listed(LATEST, current)[0] == code
    assert place.end_of(2, current) == ((code, -1, -1) if code else (0, 2, 1))


def test_reader_of_a_truncated_log_learns_where_it_diverges() -> None:
    place = Place()
    place.append(10)
    place.kafka.truncate(EVENTS, 4, 1)
    place.append(20)
    assert place.fetch(10, current=0, read=0)["error_code"] == ErrorCode.NOT_LEADER_FOR_PARTITION
    part = place.fetch(10, current=1, read=0, broker=1)
    assert (part["error_code"], part["records"]) == (0, b"")
    assert part["diverging_epoch"] == {"epoch": 0, "end_offset": 4}
    # Who does not tell what it has read gets what is there, whatever that is.
    assert len(decode_records(place.fetch(10, current=1, broker=1)["records"], 10)) == 14
    part = place.fetch(4, current=1, read=0, broker=1)
    assert part["diverging_epoch"] is None
    assert len(decode_records(part["records"], 4)) == 20
    assert place.kafka.log(EVENTS).end_of(0) == EpochEnd(0, 4)


def test_reader_of_an_epoch_that_the_log_never_had_is_out_of_range() -> None:
    place = Place()
    place.append(10)
    assert place.fetch(5, read=7)["error_code"] == ErrorCode.OFFSET_OUT_OF_RANGE


def test_fetch_that_waits_learns_of_divergence() -> None:
    place = Place()
    place.append(10)
    place.begin(FETCH, 12, place.fetch_body(10, read=0))
    assert not place.answers
    place.kafka.log(EVENTS).truncate(4)
    place.kafka.log(EVENTS).wake()
    (frame,) = place.answers
    (topic,) = decode_response(FETCH, 12, frame[4:]).body["responses"]
    assert topic["partitions"][0]["diverging_epoch"] == {"epoch": 0, "end_offset": 4}


def test_truncated_messages_of_producers_may_be_written_again() -> None:
    log = PartitionLog(0)
    log.payloads += [b"message"] * 6
    log.headers = {1: "kept", 5: "gone"}
    log.producers = {9: [(0, 2, 0), (2, 4, 2)]}
    log.truncate(4)
    assert log.producers == {9: [(0, 2, 0)]}
    assert log.headers == {1: "kept"}


def test_brokers_of_0_10_have_no_epochs() -> None:
    era = ERAS[0]
    assert OFFSET_FOR_LEADER_EPOCH not in era.versions
    place = Place(era)
    place.append(1)
    data = place.fetch(0)["records"]
    assert data[16] < 2  # messages, and no batch, which has its leader's epoch


# -- topics


def test_recreated_topic_has_another_id_and_tells_it_a_little_late() -> None:
    place = Place(WITH_IDS)
    place.append(5)
    former = place.told()["topic_id"]
    place.kafka.delete_topic("events")
    place.make_topic(2)
    place.append(3)
    assert place.told()["topic_id"] == former
    assert place.fetch(0, topic_id=former)["error_code"] == INCONSISTENT_ID
    place.kernel.run(LAG)
    told = place.told()
    assert told["topic_id"] not in (former, NO_UUID)
    assert len(told["partitions"]) == 2
    assert place.fetch(0, topic_id=former)["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID
    part = place.fetch(0, topic_id=told["topic_id"])
    assert (part["error_code"], part["high_watermark"]) == (0, 3)


def test_brokers_without_ids_read_the_new_log_to_who_was_in_the_old_one() -> None:
    place = Place(WITHOUT_IDS)
    place.append(5)
    place.kafka.delete_topic("events")
    place.make_topic(1)
    place.append(8)
    assert "topic_id" not in place.told()
    part = place.fetch(5, current=0, read=0)
    assert (part["error_code"], part["diverging_epoch"]) == (0, None)
    assert len(decode_records(part["records"], 5)) == 3


@pytest.mark.parametrize("era", [WITHOUT_IDS, WITH_IDS], ids=lambda era: era.name)
def test_fetch_that_waits_is_refused_when_its_topic_goes(era: Era) -> None:
    place = Place(era)
    place.append(1)
    version = era.versions[FETCH][1]
    topic_id = place.told().get("topic_id", NO_UUID)
    place.begin(FETCH, version, place.fetch_body(1, topic_id=topic_id))
    assert not place.answers
    place.kafka.delete_topic("events")
    (frame,) = place.answers
    (topic,) = decode_response(FETCH, version, frame[4:]).body["responses"]
    assert topic["partitions"][0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    place.kernel.run(LAG)
    place.answers.clear()
    assert place.told()["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- offsets of the group


def test_epochs_and_texts_are_kept_with_committed_offsets() -> None:
    place = Place()
    assert place.committed() == (-1, -1, "")
    assert place.commit(0, 7, 3) == 0
    assert place.committed() == (7, 3, "at 7")
    assert place.commit(0, 9, -1) == 0
    assert place.committed() == (9, -1, "at 9")
    assert place.commit(1, 9, 3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_offsets_of_a_topic_go_with_it() -> None:
    place = Place()
    place.commit(0, 7, 3)
    place.kafka.delete_topic("events")
    place.make_topic(1)
    assert place.committed() == (-1, -1, "")
