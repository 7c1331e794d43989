from __future__ import annotations

import asyncio
import base64
import errno
import fcntl
import json
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError, ConfigError, HandlerFailedError, NotFoundError
from consumerd.base.files import OsSystemCalls
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.base.settings.processing import HandlerSection
from consumerd.handlers import Batch, FileDeadLetters, KeyedMessage, Letter
from consumerd.handlers.dead_letter_files import letter_files
from consumerd.handlers.dead_letter_topic import RETRY_TOPIC, TopicDeadLetters
from consumerd.handlers.dead_letters import OriginalLetters, decode_letter, letter_size, original
from consumerd.handlers.tracebacks import MAX_TRACEBACK
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import error_of
from consumerd.net.client.topic_configs import message_limits
from consumerd.producer import ClusterProducer, MessageSizeTooLargeError, ProducerData, V08Producer
from consumerd.producer.v08.routing import key_partition
from consumerd.service.config.build import place_beside
from consumerd.service.config.build_dead_letters import compare_limits, require_topic
from consumerd.service.config.model import parse
from tests.support.dead_letters import read_letters
from tests.unit.producer.v08.test_producer import SmallTopic

MakeBatch = Callable[..., Batch]


def letters(batch: Batch) -> list[Letter]:
    return [Letter(message, ValueError("no\ngood"), 5) for message in batch.messages()]


async def test_letter_has_identity_bytes_and_error(tmp_path: Path, make_batch: MakeBatch, clock: Any) -> None:
    path = tmp_path / "new" / "folder" / "dead.ndjson"
    file = FileDeadLetters(path, clock=clock)
    await file.start()
    await file.write(letters(make_batch([b"a", b"\xff\x00\n"], start=71, topic="привет", broker=1, partition=2)))
    await file.stop()
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert records[1] == {
        "topic": "привет",
        "broker": 1,
        "partition": 2,
        "offset": 71,
        "index": 1,
        "payload_base64": base64.b64encode(b"\xff\x00\n").decode(),
        "error_type": "ValueError",
        "error": "no\ngood",
        "attempts": 5,
        "failed_at": 1_700_001_000.0,
    }
    assert [r["index"] for r in records] == [0, 1]


async def test_appends_after_a_restart_and_keeps_a_torn_line_apart(
    tmp_path: Path, make_batch: MakeBatch, clock: Any
) -> None:
    path = tmp_path / "dead.ndjson"
    for _ in range(2):
        file = FileDeadLetters(path, clock=clock)
        await file.start()
        await file.write(letters(make_batch(b"a")))
        await file.stop()
    with path.open("ab") as broken:
        broken.write(b'{"topic": "t", "bro')
    file = FileDeadLetters(path, clock=clock)
    await file.start()
    await file.write(letters(make_batch(b"b")))
    await file.stop()
    lines = path.read_bytes().splitlines()
    assert len(lines) == 4
    assert lines[2] == b'{"topic": "t", "bro'
    assert json.loads(lines[3])["payload_base64"] == base64.b64encode(b"b").decode()


async def test_raises_declared_errors_of_the_file(
    tmp_path: Path, make_batch: MakeBatch, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"handler\.dead_letter: .* cannot be opened: Not a directory"):
        await FileDeadLetters(tmp_path / "file" / "dead.ndjson", clock=clock).start()
    full = FileDeadLetters("/dev/full", clock=clock)
    with pytest.raises(HandlerFailedError, match="No space left on device; the messages are not committed"):
        await full.write(letters(make_batch(b"a")))
    await full.stop()


async def test_stops_at_the_limit_of_the_file_and_continues_after_it_was_moved(
    tmp_path: Path, make_batch: MakeBatch, clock: Any
) -> None:
    path = tmp_path / "dead.ndjson"
    one = letters(make_batch(b"a"))
    file = FileDeadLetters(path, clock=clock, max_size=400)
    await file.start()
    await file.write(one)
    await file.write(one)
    before = path.read_bytes()
    with pytest.raises(HandlerFailedError, match=rf"has {len(before)} bytes.* handler\.dead_letter_max_size \(400\)"):
        await file.write(one)
    assert path.read_bytes() == before  # no half letter
    path.rename(tmp_path / "dead.ndjson.1")
    await file.write(one)
    await file.stop()
    assert (tmp_path / "dead.ndjson.1").read_bytes() == before
    assert path.read_bytes() == before[: len(before) // 2]


async def test_writes_to_the_new_file_after_a_rename(tmp_path: Path, make_batch: MakeBatch, clock: Any) -> None:
    path = tmp_path / "dead.ndjson"
    file = FileDeadLetters(path, clock=clock)
    await file.start()
    path.rename(tmp_path / "old")
    path.touch()
    await file.write(letters(make_batch(b"a")))
    await file.stop()
    assert (tmp_path / "old").stat().st_size == 0
    assert path.stat().st_size > 0


def test_checks_that_the_path_is_writable_without_creating_it(tmp_path: Path, clock: Any) -> None:
    FileDeadLetters(tmp_path / "new" / "folder" / "dead.ndjson", clock=clock).check()
    FileDeadLetters("dead.ndjson", clock=clock).check()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a directory; name a file"):
        FileDeadLetters(tmp_path, clock=clock).check()
    with pytest.raises(ConfigError, match=r"cannot be created: .*file is not a directory"):
        FileDeadLetters(tmp_path / "file" / "dead.ndjson", clock=clock).check()
    if os.geteuid():
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        with pytest.raises(ConfigError, match=r"no permission for .*locked"):
            FileDeadLetters(locked / "new" / "dead.ndjson", clock=clock).check()


async def test_a_full_file_gets_a_number_and_a_new_one_begins(
    tmp_path: Path, make_batch: MakeBatch, clock: Any
) -> None:
    path = tmp_path / "dead.ndjson"
    file = FileDeadLetters(path, clock=clock, file_size=500)
    await file.start()
    for number in range(7):
        await file.write(letters(make_batch(b"%d" % number, start=number)))
    await file.stop()
    files = letter_files(path)
    assert [each.name for each in files] == [
        "dead.000001.ndjson", "dead.000002.ndjson", "dead.000003.ndjson", "dead.ndjson",
    ]  # fmt: skip
    assert all(each.stat().st_size <= 500 for each in files)
    found = [line.letter for each in files for line in read_letters(each)]
    assert [letter.identity.offset for letter in found if letter is not None] == list(range(7))


async def test_the_limit_counts_all_files(tmp_path: Path, make_batch: MakeBatch, clock: Any) -> None:
    path = tmp_path / "dead.ndjson"
    file = FileDeadLetters(path, clock=clock, file_size=300, max_size=500)
    await file.write(letters(make_batch(b"a")))
    await file.write(letters(make_batch(b"a")))
    with pytest.raises(HandlerFailedError, match=r"handler\.dead_letter_max_size \(500\)"):
        await file.write(letters(make_batch(b"a")))
    (tmp_path / "dead.000001.ndjson").unlink()
    await file.write(letters(make_batch(b"a")))
    await file.stop()


async def test_members_that_share_a_file_and_rotate_it_lose_nothing(
    tmp_path: Path, make_batch: MakeBatch, clock: Any
) -> None:
    path = tmp_path / "dead.ndjson"
    members = [FileDeadLetters(path, clock=clock, file_size=700) for _ in range(4)]

    async def write(member: FileDeadLetters, broker: int) -> None:
        for number in range(25):
            await member.write(letters(make_batch(b"x" * number, start=number, broker=broker)))
        await member.stop()

    await asyncio.gather(*(write(member, broker) for broker, member in enumerate(members)))
    lines = [line for each in letter_files(path) for line in read_letters(each)]
    found = {line.letter.identity for line in lines if line.letter is not None}
    assert len(found) == len(lines) == 100
    assert len(letter_files(path)) > 10


async def test_a_file_that_another_holds_locked_is_written_and_not_renamed(
    tmp_path: Path, make_batch: MakeBatch, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumerd.handlers.dead_letter_files._LOCK_SECONDS", 0.0)
    path = tmp_path / "dead.ndjson"
    file = FileDeadLetters(path, clock=clock, file_size=300)
    await file.start()
    with path.open() as frozen:
        fcntl.flock(frozen, fcntl.LOCK_EX)
        for _ in range(3):
            await file.write(letters(make_batch(b"a")))
    assert letter_files(path) == [path]
    await file.write(letters(make_batch(b"a")))
    await file.stop()
    assert len(letter_files(path)) == 2


async def test_what_a_full_disk_left_of_a_line_is_taken_back(
    tmp_path: Path, make_batch: MakeBatch, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "dead.ndjson"
    file = FileDeadLetters(path, clock=clock)
    await file.write(letters(make_batch(b"a")))
    before = path.read_bytes()
    real = os.write
    room = [40]

    def write(descriptor: int, data: bytes) -> int:
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[: room.pop()])

    with monkeypatch.context() as full:
        full.setattr(OsSystemCalls, "append", staticmethod(write))
        with pytest.raises(HandlerFailedError, match="No space left on device"):
            await file.write(letters(make_batch(b"b")))
    assert path.read_bytes() == before
    await file.stop()


async def test_letters_are_read_as_they_were_written(tmp_path: Path, make_batch: MakeBatch, clock: Any) -> None:
    path = tmp_path / "dead.ndjson"
    file = FileDeadLetters(path, clock=clock)
    batch = make_batch([b"a", b"\xff\x00\n"], start=71, broker=1, partition=2)
    keyed = KeyedMessage(TopicPartition.numbered("t", 3), 7, 0, 8, None, b"k", 123, 0, (("h", b"\xff"), ("n", None)))
    log = LogId(b"\x07" * 16, 5)
    await file.write([*letters(batch), Letter(keyed, OSError("e" * 9000), 2, log=log)])  # type: ignore[arg-type]
    await file.stop()
    first, second, third = (line.letter for line in read_letters(path))
    assert first is not None
    assert second is not None
    assert third is not None
    assert (second.message.payload, second.identity) == (b"\xff\x00\n", ("t", 1, 2, 71, 1))
    assert (second.error_type, second.error, second.attempts, second.failed_at) == (
        "ValueError", "no\ngood", 5, 1_700_001_000.0,
    )  # fmt: skip
    assert third.message == keyed
    assert (second.log, third.log) == (UNKNOWN_LOG, log)
    record = json.loads(path.read_bytes().splitlines()[2])
    assert (record["topic_id"], record["leader_epoch"]) == ("BwcHBwcHBwcHBwcHBwcHBw", 5)
    assert len(third.error) == 4000


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"topic": 1}, "topic is missing or of the wrong type"),
        ({"topic": ""}, "topic is empty"),
        ({"offset": -1}, "offset is out of range"),
        ({"offset": True}, "offset is missing"),
        ({"broker": 1 << 40}, "broker is out of range"),
        ({"topic_id": 7}, "topic_id is missing or of the wrong type"),
        ({"leader_epoch": -1}, "leader_epoch is out of range"),
        ({"leader_epoch": "5"}, "leader_epoch is missing or of the wrong type"),
        ({"failed_at": "now"}, "failed_at must be a time"),
        ({"failed_at": float("nan")}, "failed_at must be a time"),
        ({"payload_base64": "?"}, "payload_base64 is not base64"),
        ({"payload_base64": 5}, "payload_base64 is not base64"),
        ({"payload_base64": None}, "payload_base64 is missing"),
        ({"broker": None, "timestamp": 1, "headers": ["x"]}, "headers must be pairs"),
        ({"broker": None, "timestamp": 1, "headers": 5}, "headers must be a list"),
        ({"broker": None, "timestamp": 1, "headers": {"x": "y"}}, "headers must be a list"),
        ({"attempts": None}, "attempts is missing"),
        ({"error": 5}, "error is missing"),
    ],
)
def test_rejects_lines_that_are_not_letters(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    good = {
        "topic": "t", "broker": 0, "partition": 0, "offset": 5, "index": 0, "payload_base64": "YQ==",
        "error_type": "E", "error": "e", "attempts": 1, "failed_at": 1.0,
    }  # fmt: skip
    path = tmp_path / "dead.ndjson"
    path.write_text(f"{json.dumps(good)}\n{json.dumps(good | change)}\n[1]\n\xff\n{'[' * 100_000}\n{{")
    first, bad, *others = read_letters(path)
    assert first.letter is not None
    assert (bad.letter, bad.start) == (None, first.end)
    assert problem in bad.problem
    assert [line.problem for line in others] == ["it is not a JSON object"] * 3  # and the torn end is not changed


class _Producer:
    def __init__(self, error: Exception | None = None) -> None:
        self.sent: list[ProducerData] = []
        self.error = error

    async def send_all(self, data: Sequence[ProducerData], *, merge: bool = False) -> None:
        if self.error is not None:
            raise self.error
        self.sent += data


def _topic(
    producer: _Producer, clock: Any, *, headers: bool, as_json: bool = False, beside: FileDeadLetters | None = None
) -> TopicDeadLetters:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        yield SimpleNamespace(producer=producer, headers=headers)

    return TopicDeadLetters("dead", opened, clock=clock, as_json=as_json, beside=beside)


KEYED = KeyedMessage(TopicPartition.numbered("t", 3), 7, 0, 8, b"v", b"k", 123, 0, (("h", b"\xff"),))


async def test_a_letter_in_a_topic_is_the_message_with_headers(clock: Any) -> None:
    producer = _Producer()
    place = _topic(producer, clock, headers=True)
    await place.start()
    await place.write([Letter(KEYED, ValueError("no"), 3)])  # type: ignore[arg-type]
    await place.stop()
    (sent,) = producer.sent
    assert (sent.topic, sent.payloads, sent.key, sent.timestamp) == ("dead", [b"v"], b"k", 123)
    assert sent.headers == (
        ("h", b"\xff"),
        ("consumerd.dead_letter.topic", b"t"),
        ("consumerd.dead_letter.partition", b"3"),
        ("consumerd.dead_letter.offset", b"7"),
        ("consumerd.dead_letter.index", b"0"),
        ("consumerd.dead_letter.error_type", b"ValueError"),
        ("consumerd.dead_letter.error", b"no"),
        ("consumerd.dead_letter.attempts", b"3"),
        ("consumerd.dead_letter.failed_at", b"1700001000.000"),
    )


@pytest.mark.parametrize("timestamp", [-1, 1 << 63])
async def test_a_letter_in_a_topic_has_no_timestamp_that_its_message_cannot_have(clock: Any, timestamp: int) -> None:
    producer = _Producer()
    place = _topic(producer, clock, headers=True)
    await place.start()
    await place.write([Letter(KEYED._replace(timestamp=timestamp), ValueError("no"), 3)])  # type: ignore[arg-type]
    await place.stop()
    assert [sent.timestamp for sent in producer.sent] == [None]


class _Limited(_Producer):
    """Takes letters up to a size, as a topic does; a request with a larger one is refused as a whole."""

    def __init__(self, largest: int, error: Exception) -> None:
        super().__init__()
        self.largest = largest
        self.refusal = error

    async def send_all(self, data: Sequence[ProducerData], *, merge: bool = False) -> None:
        if any(_size(each) > self.largest for each in data):
            raise self.refusal
        self.sent += data


def _size(data: ProducerData) -> int:
    return len(data.payloads[0]) + sum(len(name) + len(value or b"") for name, value in data.headers)


REFUSALS = [error_of(10, "dead/0"), error_of(18, "dead/0"), MessageSizeTooLargeError("too large")]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["message", "batch", "producer"])
@pytest.mark.parametrize("as_json", [True, False])
async def test_a_letter_that_is_too_large_tells_less_and_goes_to_a_file_in_the_end(
    tmp_path: Path, clock: Any, refusal: Exception, as_json: bool
) -> None:
    letter = Letter(KEYED, ValueError("e" * 1000), 3, traceback="f" * 500)  # type: ignore[arg-type]
    probe = _Producer()
    place = _topic(probe, clock, headers=True, as_json=as_json)
    await place.start()
    sizes = []
    for shorter in letter.shorter():
        await place.write([shorter])
        sizes.append(_size(probe.sent[-1]))
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == 4
    small = Letter(KEYED, ValueError("no"), 3)  # type: ignore[arg-type]
    for number, largest in enumerate([*sizes, sizes[-1] - 1]):
        producer = _Limited(largest, refusal)
        beside = FileDeadLetters(tmp_path / f"{number}.ndjson", clock=clock)
        place = _topic(producer, clock, headers=True, as_json=as_json, beside=beside)
        await place.start()
        with capture_logs() as logs:
            await place.write([letter, small] if number < 4 else [letter])
        await place.stop()
        assert [_size(each) for each in producer.sent][:1] == sizes[number : number + 1]
        if number < 4:
            assert len(producer.sent) == 2
            assert (logs, [*tmp_path.glob(f"{number}*")]) == ([], [])
        else:
            (line,) = read_letters(tmp_path / f"{number}.ndjson")
            assert line.letter is not None
            assert (line.letter.message, line.letter.error, line.letter.traceback) == (KEYED, "e" * 1000, "f" * 500)
            assert [(each["event"], each["place"]) for each in logs] == [("dead_letter_beside_topic", str(beside))]


async def test_letters_beside_one_that_is_too_large_are_stored_once(tmp_path: Path, clock: Any) -> None:
    cluster = SmallTopic()
    keys = next([b"a", other] for other in (b"b", b"c", b"d") if key_partition(other, 3) != key_partition(b"a", 3))
    messages = [
        KEYED._replace(offset=number, key=keys[number % 2], payload=b"%d" % number * (1000 if number == 4 else 1))
        for number in range(12)
    ]
    letters: Any = [Letter(each, ValueError("no"), 3) for each in messages]  # type: ignore[arg-type]
    v08 = V08Producer(cast("ClusterClient", cluster), clock=SystemClock(), rng=random.Random(1), divides=False)
    beside = FileDeadLetters(tmp_path / "beside.ndjson", clock=clock)
    async with ClusterProducer(v08) as producer:

        @asynccontextmanager
        async def opened() -> AsyncIterator[Any]:
            yield SimpleNamespace(producer=producer, headers=True)

        place = TopicDeadLetters("t", opened, clock=clock, beside=beside)
        await place.start()
        with capture_logs():
            await place.write(letters)
        await place.stop()
    stored = sorted(int(each.payload or b"") for log in cluster.log.values() for each in log)
    assert stored == [number for number in range(12) if number != 4]
    (line,) = read_letters(tmp_path / "beside.ndjson")
    assert line.letter is not None
    assert line.letter.message.offset == 4


async def test_a_letter_that_is_too_large_stops_the_daemon_where_no_file_takes_it(tmp_path: Path, clock: Any) -> None:
    letter = Letter(KEYED, ValueError("no"), 3)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    for beside, said in (
        (None, "is too large for the dead-letter topic dead: raise its max.message.bytes"),
        (FileDeadLetters(tmp_path / "file" / "dead.ndjson", clock=clock), "cannot write to the dead-letter file"),
    ):
        place = _topic(_Limited(0, MessageSizeTooLargeError("x")), clock, headers=True, beside=beside)
        await place.start()
        with pytest.raises(HandlerFailedError, match=said):
            await place.write([letter])
        await place.stop()


@pytest.mark.parametrize("folder", [None, "/var/lib/events", "/var/lib/events:/var/lib/other"])
def test_the_file_beside_a_topic_is_in_the_state_directory(folder: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    if folder is not None:
        monkeypatch.setenv("STATE_DIRECTORY", folder)
    expected = "dead.too-large.ndjson" if folder is None else "/var/lib/events/dead.too-large.ndjson"
    section = HandlerSection(name="null", on_failure="dead_letter", dead_letter_topic="dead")
    assert str(place_beside(section)) == expected


async def test_a_topic_that_does_not_exist_is_found_at_the_start() -> None:
    class Producer:
        async def partition_count(self, topic: str, *, timeout: float | None = None) -> int:
            raise self.error

        error: Exception = cast("Exception", error_of(3, "dead/0 has no leader"))

    producer = Producer()
    with pytest.raises(NotFoundError, match="the topic 'dead' does not exist, and the brokers do not create it"):
        await require_topic(cast("V08Producer", producer), "dead")
    producer.error = cast("Exception", error_of(29, "dead/0"))
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        await require_topic(cast("V08Producer", producer), "dead")


class _Brokers:
    """A client that knows the limits of topics. -1: the broker refuses to tell; None: there is no such topic."""

    def __init__(self, **limits: int | None) -> None:
        self.limits = limits
        self.listed = 0

    async def refresh(self, topics: None) -> Any:
        self.listed += 1
        return SimpleNamespace(topics=self.limits)

    async def any_channel(self) -> Any:
        return self

    async def call(self, api: Any, body: dict[str, Any]) -> dict[str, Any]:
        assert api.name == "DescribeConfigs"
        return {"results": [self._result(each["resource_name"]) for each in body["resources"]]}

    def _result(self, topic: str) -> dict[str, Any]:
        limit = self.limits.get(topic)
        code = 3 if limit is None else 29 if limit < 0 else 0
        configs = [] if code else [{"name": "max.message.bytes", "value": str(limit)}]
        return {"error_code": code, "resource_name": topic, "configs": configs}


@pytest.mark.parametrize(
    ("limits", "as_", "small"),
    [
        ({"a": 1000, "b": 2000, "dead": 2000}, "message", "messages of b may have 2000 bytes and their letters 9500"),
        ({"a": 1000, "b": 2000, "dead": 9500}, "message", None),
        ({"a": 1000, "b": 2000, "dead": 9500}, "json", "messages of b may have 2000 bytes and their letters 10168"),
        ({"a": 1000, "b": 2000, "dead": 10168}, "json", None),
        ({"a": 1000, "dead": 8500}, "message", None),
        ({"dead": 10}, "message", None),
        ({"a": 1000}, "message", None),
    ],
)
@pytest.mark.parametrize("group", [{"topics": {"a": 1, "b": 1}}, {"whitelist": "a|b"}])
async def test_the_limits_of_topics_are_compared(
    limits: dict[str, int], as_: str, small: str | None, group: dict[str, Any]
) -> None:
    handler = {"on_failure": "dead_letter", "dead_letter_topic": "dead", "dead_letter": "/f", "dead_letter_as": as_}
    config = parse({"group": {"id": "g", **group}, "handler": handler}, "a test", environment=False)
    brokers = _Brokers(**limits, other=10**9)
    told = await compare_limits(cast("ClusterClient", brokers), config, "dead")
    assert (told is None) == (small is None)
    if small is not None:
        assert told == f"{small}, but max.message.bytes of dead is {limits['dead']}: raise it; larger letters go to /f"
    assert brokers.listed == ("whitelist" in group)


async def test_limits_that_a_broker_does_not_tell_are_an_error() -> None:
    with pytest.raises(BrokerError, match="lacks the permission DescribeConfigs on the topic 'dead'"):
        await message_limits(cast("ClusterClient", _Brokers(dead=-1)), ["dead"])


@pytest.mark.parametrize("as_json", [True, False])
async def test_no_letter_is_larger_than_its_size(clock: Any, as_json: bool) -> None:
    name = "t" * 249
    message = KEYED._replace(
        partition=TopicPartition.numbered(name, (1 << 31) - 1), offset=(1 << 63) - 1, payload=b"v" * 1000, headers=()
    )
    log = LogId(b"\x07" * 16, (1 << 31) - 1)
    error = type("E" * 100, (Exception,), {})("e" * 9000)
    letter = Letter(message, error, 10**6, log, traceback="f" * MAX_TRACEBACK)  # type: ignore[arg-type]
    probe = _Producer()
    place = _topic(probe, clock, headers=True, as_json=as_json)
    await place.start()
    await place.write([letter])
    await place.stop()
    size = len(b"k") + _size(probe.sent[0])
    assert 0.8 * letter_size(1000, as_json=as_json) < size <= letter_size(1000, as_json=as_json)


async def test_a_letter_has_the_traceback_of_its_error(tmp_path: Path, clock: Any) -> None:
    traceback = "app.py:9 in App.row: record['id']"
    letter = Letter(KEYED, KeyError("id"), 3, traceback=traceback)  # type: ignore[arg-type]
    producer = _Producer()
    place = _topic(producer, clock, headers=True)
    await place.start()
    await place.write([letter])
    await place.stop()
    assert dict(producer.sent[0].headers)["consumerd.dead_letter.traceback"] == traceback.encode()
    file = FileDeadLetters(tmp_path / "dead.ndjson", clock=clock)
    await file.write([letter])
    await file.stop()
    (line,) = read_letters(tmp_path / "dead.ndjson")
    assert line.letter is not None
    assert line.letter.traceback == traceback


async def test_a_letter_in_a_topic_tells_the_log_of_the_message(clock: Any) -> None:
    producer = _Producer()
    place = _topic(producer, clock, headers=True)
    await place.start()
    await place.write([Letter(KEYED, ValueError("no"), 3, log=LogId(b"\x07" * 16, 5))])  # type: ignore[arg-type]
    await place.stop()
    told = dict(producer.sent[0].headers)
    assert told["consumerd.dead_letter.topic_id"] == b"BwcHBwcHBwcHBwcHBwcHBw"
    assert told["consumerd.dead_letter.leader_epoch"] == b"5"


@pytest.mark.parametrize("headers", [True, False])
async def test_a_letter_as_json_can_be_read_back(clock: Any, headers: bool) -> None:
    producer = _Producer()
    place = _topic(producer, clock, headers=headers, as_json=headers)
    await place.start()
    await place.write([Letter(KEYED, ValueError("no"), 3)])  # type: ignore[arg-type]
    await place.stop()
    (sent,) = producer.sent
    assert (sent.key, sent.headers, sent.timestamp) == (b"k" if headers else None, (), None)
    assert decode_letter(sent.payloads[0]).message == KEYED


async def test_a_topic_that_does_not_take_a_letter_stops_the_daemon(make_batch: MakeBatch, clock: Any) -> None:
    place = _topic(_Producer(BrokerError("no leader.")), clock, headers=False)
    with pytest.raises(HandlerFailedError, match="not started"):
        await place.write(letters(make_batch(b"a")))
    await place.start()
    with pytest.raises(
        HandlerFailedError, match=r"dead-letter topic dead: no leader\.; the messages are not committed"
    ):
        await place.write(letters(make_batch(b"a")))
    await place.stop()


async def test_letter_of_a_retry_topic_is_that_of_the_message_that_failed_first(clock: Any) -> None:
    log = LogId(b"\x07" * 16, 5)
    first, second = _Producer(), _Producer()
    place = _topic(first, clock, headers=True)
    await place.start()
    await place.write([Letter(KEYED, ValueError("no"), 3, log=log)])  # type: ignore[arg-type]
    (sent,) = first.sent
    again = KeyedMessage(TopicPartition.numbered("later", 1), 99, 0, 100, b"v", b"k", 123, 0, tuple(sent.headers))

    originals = OriginalLetters(_topic(second, clock, headers=True))
    await originals.start()
    await originals.write([Letter(again, OSError("still no"), 2)])  # type: ignore[arg-type]
    await originals.stop()

    headers = dict(second.sent[0].headers)
    assert len(headers) == len(second.sent[0].headers)
    told = {name.rpartition(".")[2]: value for name, value in headers.items()}
    assert (told["topic"], told["partition"], told["offset"], told["attempts"]) == (b"t", b"3", b"7", b"5")
    assert (told["error"], told["topic_id"], told["leader_epoch"]) == (b"still no", b"BwcHBwcHBwcHBwcHBwcHBw", b"5")
    assert headers["h"] == b"\xff"


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("consumerd.dead_letter.topic", b"t"),),
        *(
            (
                ("consumerd.dead_letter.topic", topic),
                ("consumerd.dead_letter.partition", partition),
                ("consumerd.dead_letter.offset", offset),
                ("consumerd.dead_letter.attempts", b"1"),
            )
            for topic, partition, offset in [
                (b"", b"1", b"1"),
                (b"\xff", b"1", b"1"),
                (b"t", b"x", b"1"),
                (b"t", None, b"1"),
                (b"t", b"-1", b"1"),
                (b"t", b"1", b"9223372036854775808"),
            ]
        ),
    ],
)
def test_letter_with_headers_that_describe_no_failure_stays_as_it_is(
    headers: tuple[tuple[str, bytes | None], ...],
) -> None:
    letter = Letter(KEYED._replace(headers=headers), ValueError("no"), 3)  # type: ignore[arg-type]
    assert original(letter) is letter


async def test_retry_topic_refuses_brokers_without_headers(clock: Any) -> None:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        yield SimpleNamespace(producer=_Producer(), headers=False)

    place = TopicDeadLetters("later-30s", opened, clock=clock, key=RETRY_TOPIC)
    with pytest.raises(ConfigError, match=r"handler\.retry_topic needs brokers of 0\.11 or later"):
        await place.start()
    await place.stop()
