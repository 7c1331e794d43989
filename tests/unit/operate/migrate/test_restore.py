"""A replay into a broker in memory: each message once, whatever happens at any request; and offsets translated."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import BrokerError
from consumerd.base.partition import TopicPartition
from consumerd.handlers.forward.handler import ForwardHandler
from consumerd.handlers.forward.mapping import BrokerMajorNumbering, TopicNaming
from consumerd.handlers.forward.target_log import TargetLog
from consumerd.operate.admin.errors import RefusedError
from consumerd.operate.migrate import archived_topics as reading
from consumerd.operate.migrate.archived_topics import ArchivedPartition, find_archived
from consumerd.operate.migrate.restore import Restore, RestoreReport, restore_settings
from consumerd.operate.migrate.restored_log import LogMatch, match
from consumerd.storage.archives.cluster_metadata import ClusterTopics
from consumerd.storage.archives.errors import InterruptedWorkError
from consumerd.storage.archives.opening import open_segments
from consumerd.storage.archives.pool import NoProgress, StopFlag
from consumerd.storage.archives.sources import SegmentSource, find_sources
from consumerd.storage.segments.cluster_metadata import ExistingTopic
from consumerd.wire.v07 import LATEST
from consumerd.wire.v08.records import RecordCodec
from tests.support.archives import batch, marker, write_segment
from tests.support.transactional_broker import COMMITTED, Entry, Log, Strike, TransactionalBroker
from tests.support.virtual_time import LoopClock, run_in_virtual_time

MESSAGES = [b"message-%d" % number for number in range(7)]


class Target(TransactionalBroker):
    """The broker, with fetches and new topics. A transaction's end takes one offset, too."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"topics": (), "partitions": 1, **options})
        self.settings: dict[str, str] = {}
        self.made: list[dict[str, Any]] = []
        #: How often new topics are not known yet.
        self.late = 0

    def _end(self, known: Any, state: str, *, bump: bool) -> None:
        touched = list(known.partitions)
        super()._end(known, state, bump=bump)
        for partition in touched:
            log = self.logs[partition]
            log.aborted.add(len(log.entries))  # the marker, which nobody gets
            log.entries.append(Entry((known.producer_id, -1 if state == COMMITTED else -2), None))

    def _metadata(self, version: int, body: dict[str, Any], error: int | None) -> dict[str, Any]:
        if body["topics"]:
            self.late, unknown = max(0, self.late - 1), self.late
            body = {"topics": []} if unknown else body
        if body["topics"] is not None:
            body = {"topics": [each for each in body["topics"] if each["name"] in self.topics]}
        return super()._metadata(version, body, error)

    def _create_topics(self, version: int, body: dict[str, Any], error: int | None) -> dict[str, Any]:
        del version
        (topic,) = body["topics"]
        exists = topic["name"] in self.topics
        if not exists and not error:
            self.topics[topic["name"]] = topic["num_partitions"]
            self.made.append(topic)
        code = error or (36 if exists else 0)
        return {"topics": [{"name": topic["name"], "error_code": code, "error_message": None}]}

    def _describe_configs(self, version: int, body: dict[str, Any], error: int | None) -> dict[str, Any]:
        del version
        configs = [
            {"name": name, "value": value, "read_only": False, "is_sensitive": False, "config_source": 5}
            for name, value in self.settings.items()
        ]
        found = {"error_code": error or 0, "error_message": None, "resource_type": 2, "configs": configs}
        return {"results": [{**found, "resource_name": each["resource_name"]} for each in body["resources"]]}

    def log(self, topic: str, number: int) -> Log:
        return self.logs[TopicPartition.numbered(topic, number)]

    def _stable(self, log: Log) -> int:
        return min(log.first_open.values(), default=len(log.entries))

    def _list_offsets(self, version: int, body: dict[str, Any], error: int | None) -> dict[str, Any]:
        del version
        assert body["isolation_level"] == 1
        topics = []
        for topic in body["topics"]:
            parts = []
            for part in topic["partitions"]:
                end = self._stable(self.log(topic["name"], part["partition_index"]))
                offset = end if part["timestamp"] == LATEST else 0
                place = {"partition_index": part["partition_index"], "timestamp": -1, "leader_epoch": -1}
                parts.append({**place, "error_code": error or 0, "offset": offset})
            topics.append({"name": topic["name"], "partitions": parts})
        return {"topics": topics}

    def _fetch(self, version: int, body: dict[str, Any], error: int | None) -> dict[str, Any]:
        assert body["isolation_level"] == 1
        (topic,) = body["topics"]
        names = {name.encode().ljust(16, b"."): name for name in self.topics}
        name = names[topic["topic_id"]] if version > 12 else topic["topic"]
        (part,) = topic["partitions"]
        log, start = self.log(name, part["partition"]), part["fetch_offset"]
        stable = self._stable(log)
        data, aborted = b"", []
        for at in range(start, stable):
            (producer, kind), value = log.entries[at]
            data += batch(at, value, producer=producer) if kind >= 0 else marker(at, producer, commit=kind == -1)
            if kind >= 0 and at in log.aborted:
                aborted.append({"producer_id": producer, "first_offset": at})
        found = {"partition_index": part["partition"], "error_code": error or 0, "high_watermark": len(log.entries)}
        found |= {"last_stable_offset": stable, "log_start_offset": 0, "aborted_transactions": aborted}
        return {"error_code": 0, "session_id": 0, "responses": [{**topic, "partitions": [{**found, "records": data}]}]}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Seven messages, which are read two at a time, with gaps, a marker and an aborted transaction between them."""
    write_segment(
        tmp_path, "t-0", 0,
        batch(0, *MESSAGES[:3]), batch(5, *MESSAGES[3:4], producer=9), marker(6, 9, commit=True),
        batch(7, b"aborted", producer=9), marker(8, 9, commit=False), batch(20, *MESSAGES[4:]),
    )  # fmt: skip
    return tmp_path


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_COUNT", 2)


def archived_in(path: Path) -> list[ArchivedPartition]:
    return find_archived(find_sources([str(path)]))


async def restored(broker: Target, path: Path, *, stop: StopFlag | None = None, **options: Any) -> RestoreReport:
    naming = options.pop("naming", None) or TopicNaming()

    def make_handler(codec: RecordCodec) -> ForwardHandler:
        settings = restore_settings(codec, source=None, max_message_bytes=1000)
        return ForwardHandler(
            lambda *_: broker.client(), naming, BrokerMajorNumbering(), settings, rng=random.Random(1)
        )

    verify = options.pop("verify", True)
    client = broker.client()
    run = Restore(archived_in(path), client, make_handler, naming, clock=LoopClock(), rng=random.Random(1), **options)
    return await run.run(verify=verify, progress=NoProgress(), stop=stop or StopFlag())


def run(broker: Target, path: Path, **options: Any) -> RestoreReport:
    reports: list[RestoreReport] = []

    async def main() -> None:
        reports.append(await restored(broker, path, **options))

    run_in_virtual_time(main())
    return reports[0]


def test_topic_is_created_with_what_it_had_and_every_message_is_there(archive: Path) -> None:
    write_segment(archive, "t-3", 0, batch(0, b"of another"))
    broker = Target()
    report = run(broker, archive, replicas=2, counts={"t": 6})
    (made,) = broker.made
    assert (made["name"], made["num_partitions"], made["replication_factor"]) == ("t", 6, 2)
    assert {each["name"]: each["value"] for each in made["configs"]} == {"retention.ms": "-1", "retention.bytes": "-1"}
    assert broker.committed("t") == [*MESSAGES, b"of another"]
    assert report.created == ["t"]
    assert [(each.topic, each.sent, len(each.digest), each.difference) for each in report.partitions] == [
        ("t", 7, 32, ""),
        ("t", 1, 32, ""),
    ]
    again = run(broker, archive)
    assert [each.sent for each in again.partitions] == [0, 0]
    assert [each.digest for each in again.partitions] == [each.digest for each in report.partitions]
    assert broker.committed("t") == [*MESSAGES, b"of another"]


def test_topic_is_created_with_the_partitions_and_settings_that_it_had(archive: Path) -> None:
    had = ExistingTopic("t", "id", {0: (1,), 8: (1,)}, {"max.message.bytes": "5000000", "retention.ms": "1000"})
    broker = Target()
    report = run(broker, archive, naming=TopicNaming(table={"t": "u"}), existing=ClusterTopics({"t": had}, {}))
    (made,) = broker.made
    assert (made["name"], made["num_partitions"]) == ("u", 9)
    configs = {each["name"]: each["value"] for each in made["configs"]}
    assert configs == {"max.message.bytes": "5000000", "retention.ms": "-1", "retention.bytes": "-1"}
    assert (
        "topic 'u' had other settings: when the groups have caught up, set retention.ms=1000, and remove "
        "retention.bytes"
    ) in report.notes


def test_topic_that_the_brokers_learn_of_later_is_waited_for(archive: Path) -> None:
    broker = Target()
    broker.late = 3
    report = run(broker, archive)
    assert (report.created, broker.late) == (["t"], 0)
    assert broker.committed("t") == MESSAGES


def test_what_the_archive_lost_since_the_former_run_is_named(archive: Path) -> None:
    broker = Target()
    assert not any("former run" in note for note in (*run(broker, archive).notes, *run(broker, archive).notes))
    (archive / "t-0" / f"{0:020}.log").unlink()
    write_segment(archive, "t-0", 30, batch(30, b"later"))
    report = run(broker, archive, verify=False)
    assert (
        "t/0: the former run ended at offset 23, and the archive begins at 30 by now: what was between is not replayed"
    ) in report.notes
    assert broker.committed("t") == [*MESSAGES, b"later"]


def test_what_was_sent_at_once_is_verified_without_reading_the_archive_again(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: Counter[str] = Counter()

    def counted(source: SegmentSource, **options: Any) -> Any:
        opened[source.path.rpartition("/")[2]] += 1
        return open_segments(source, **options)

    monkeypatch.setattr(reading, "open_segments", counted)
    broker = Target()
    (sent,) = run(broker, archive).partitions
    assert opened == {f"{0:020}.log": 2}  # for a look, and to send it
    (again,) = run(broker, archive).partitions
    assert opened == {f"{0:020}.log": 5}  # for a look, behind the position, and beside the target
    assert (sent.digest, sent.difference) == (again.digest, again.difference)


def test_a_message_that_was_changed_while_it_was_sent_is_a_difference(archive: Path) -> None:
    broker = Target()

    class Changing(StopFlag):
        """Asked before each transaction; the messages of the former one are there by then."""

        @property
        def requested(self) -> bool:  # type: ignore[override]
            for log in broker.logs.values():
                for place, entry in enumerate(log.entries):
                    if entry.payload == MESSAGES[1]:
                        log.entries[place] = entry._replace(payload=b"changed")
            return False

    (result,) = run(broker, archive, stop=Changing()).partitions
    assert result.difference == "the message at offset 1 differs in its value from that at 1 of the target"


async def _life(broker: Target, path: Path) -> None:
    await restored(broker, path, verify=False)


async def _lives(broker: Target, path: Path, strike: Strike) -> None:
    """One process after the other, until one comes to the end."""
    for _ in range(4):
        broker.dead = False
        strike.running = asyncio.create_task(_life(broker, path))
        await asyncio.wait([strike.running])
        if not strike.running.cancelled() and strike.running.exception() is None:
            return
    raise AssertionError(f"not replayed in the end: {strike.happened}")


@pytest.mark.parametrize("fault", ["killed before", "killed after", "lost after", "error 14"])
def test_each_message_is_there_once_whatever_happens_at_any_request(archive: Path, fault: str) -> None:
    struck: Counter[str] = Counter()
    for place in count(1):
        broker = Target()
        strike = Strike(broker, fault, place)
        run_in_virtual_time(_lives(broker, archive, strike))
        assert broker.committed("t") == MESSAGES, (fault, place)
        assert broker.hanging == []
        if not strike.happened:
            break
        struck[strike.happened] += 1
    assert struck.keys() >= {"CreateTopics", "InitProducerId", "OffsetFetch", "Produce", "TxnOffsetCommit", "EndTxn"}


def test_stops_between_transactions_and_continues(archive: Path) -> None:
    broker, stop = Target(), StopFlag()

    def end(api: Any) -> None:
        stop.requested = stop.requested or api.name == "EndTxn"

    broker.after = end
    with pytest.raises(InterruptedWorkError, match="repeat the command to continue"):
        run(broker, archive, stop=stop)
    assert broker.committed("t") == MESSAGES[:2]
    run(broker, archive)
    assert broker.committed("t") == MESSAGES


def test_writes_to_no_topic_that_holds_other_messages(archive: Path) -> None:
    broker = Target()
    run(broker, archive, naming=TopicNaming(table={"t": "u"}))
    broker.offsets.clear()  # the position of the restore: now it is any topic
    with pytest.raises(RefusedError, match=r"u/0 of the target holds messages .from offset 0 on. that no restore"):
        run(broker, archive, naming=TopicNaming(table={"t": "u"}))
    assert broker.committed("u") == MESSAGES


def test_topic_with_too_few_partitions_is_refused_and_settings_that_change_messages_are_named(archive: Path) -> None:
    write_segment(archive, "t-1", 0, batch(0, b"x", timestamps=0))
    with pytest.raises(RefusedError, match="'t' of the target has 1 partitions, and the archive 2"):
        run(Target(topics=("t",)), archive)
    broker = Target(topics=("t",), partitions=3)
    broker.settings = {"message.timestamp.type": "LogAppendTime", "retention.ms": "0", "cleanup.policy": "delete"}
    notes = run(broker, archive, verify=False).notes
    assert [note.split(":")[0] for note in notes] == [
        "topic 't' of the target has 3 partitions, and the archive 2",
        "topic 't' of the target has message.timestamp.type=LogAppendTime",
        "topic 't' of the target has retention.ms=0",
    ]


def test_broker_that_stays_away_ends_the_run_with_what_to_do(archive: Path) -> None:
    broker = Target()
    broker.before = lambda api: 15 if api.name == "InitProducerId" else None
    with pytest.raises(BrokerError, match=r"t/0 cannot be replayed: .*repeat the command to continue"):
        run(broker, archive)


def compared(broker: Target, path: Path, *offsets: int, whole: bool = True) -> LogMatch:
    found: list[LogMatch] = []

    async def main() -> None:
        log = TargetLog(broker.client(), read_committed=True)
        (archived,) = archived_in(path)
        found.append(await match(archived, log, "t", offsets=offsets, whole=whole))

    run_in_virtual_time(main())
    return found[0]


def test_offsets_are_those_of_the_same_messages(archive: Path) -> None:
    broker = Target()
    run(broker, archive)
    # On the target each pair of messages is followed by the end of its transaction.
    found = compared(broker, archive, 0, 1, 3, 5, 6, 20, 21, 23, 99)
    assert found.offsets == {0: 0, 1: 1, 3: 4, 5: 4, 6: 6, 20: 6, 21: 7, 23: 11, 99: 11}
    assert (found.messages, found.difference, found.end) == (7, None, 11)
    early = compared(broker, archive, 1, whole=False)
    assert (early.messages, early.offsets) == (2, {1: 1})


def test_first_message_that_differs_or_is_missing_is_named(archive: Path) -> None:
    broker = Target()
    run(broker, archive)
    log = broker.log("t", 0)
    log.entries[4] = log.entries[4]._replace(payload=b"other")
    found = compared(broker, archive, 1, 5)
    assert found.difference == "the message at offset 5 differs in its value from that at 4 of the target"
    assert (found.messages, found.offsets, found.digest) == (3, {1: 1}, "")
    report = run(broker, archive)
    assert (report.differences, report.partitions[0].sent) == (1, 0)
    del log.entries[4:]
    assert compared(broker, archive).difference == "the message at offset 5 is missing"
