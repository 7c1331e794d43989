"""Brokers of 0.9 and later at the level of their wire protocol: a cluster in memory, and its group coordinator.

Strategy: `SimulatedKafka` is what brokers share: logs and who leads them, the offsets, and the coordinator of the
group (`tests.simulation.coordinator`, whose log survives), wherever it lives at the time. A `KafkaBroker` is
an address with connections; it decodes requests and encodes answers by the schemas of `consumerd.wire.v08`. It
refuses requests for partitions and groups of other brokers, and metadata show changes a little late, as those of
brokers do. Fetches wait for data, and may be part of a session (KIP-227). A topic that was deleted and made again has
another id and new logs, and the group's offsets of it are gone; brokers without topic ids, and requests by name, do
not show the difference. Readers who tell the epoch of what they read last learn where their log parts from the
leader's (KIP-320, KIP-595).
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from consumerd.base.partition import TopicPartition
from consumerd.wire.errors import WireError
from consumerd.wire.v08 import apis
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.headers import ResponseHeader, read_api
from consumerd.wire.v08.messages import ResponseMessage, decode_request, encode_response
from consumerd.wire.v08.records import decode_records
from consumerd.wire.v08.schema import NO_UUID, Api
from consumerd.wire.v08.subscription import PROTOCOL_TYPE, decode_assignment
from tests.simulation.consumer_coordinator import ConsumerCoordinator
from tests.simulation.coordinator import Coordinator, GroupState, Rules
from tests.simulation.kafka_log import UNKNOWN, EpochEnd, PartitionLog
from tests.simulation.kernel import Kernel
from tests.simulation.network import Line, Link, Network
from tests.simulation.serving import ServedConnection

if TYPE_CHECKING:
    from random import Random


#: Topic (its name, or its id) and number of a partition; what is asked or answered of each.
Key = tuple[str | bytes, int]
Parts = dict[Key, Any]

#: The cost of a request, in seconds.
REQUEST_TIME = 0.0001
_EARLIEST = -2
#: Of a record batch: where its magic is, that of batches with producer ids, and these with their sequence numbers.
_MAGIC, _NUMBERED = 16, 2
_PRODUCER, _PRODUCER_AT = struct.Struct(">q2xi"), 43
#: Batches of a producer that brokers remember.
_REMEMBERED = 5
_NO_OFFSET = -1
#: Error codes of requests with the epoch of another leader, and with the id of another topic.
_FENCED_EPOCH, _UNKNOWN_EPOCH, _INCONSISTENT_ID = 74, 75, 103
#: First versions in which an answer or request looks otherwise.
_BATCHES_SINCE = 4
_IDS_SINCE = 13
_EACH_LEAVES_SINCE = 3
_SESSIONS_SINCE = 7
_GROUP_ERROR_SINCE = 2


class Era(NamedTuple):
    """The versions that brokers of one release serve, and the rules of their coordinator."""

    name: str
    versions: Mapping[Api[Any, Any], tuple[int, int]]
    rules: Rules


def _served(*last: int, first_fetch: int, epochs: int | None = None) -> dict[Api[Any, Any], tuple[int, int]]:
    served: tuple[Api[Any, Any], ...] = (
        apis.FETCH, apis.LIST_OFFSETS, apis.METADATA, apis.OFFSET_COMMIT, apis.OFFSET_FETCH, apis.FIND_COORDINATOR,
        apis.JOIN_GROUP, apis.HEARTBEAT, apis.LEAVE_GROUP, apis.SYNC_GROUP, apis.API_VERSIONS,
    )  # fmt: skip
    ranges: dict[Api[Any, Any], tuple[int, int]] = {
        api: (0, version) for api, version in zip(served, last, strict=True)
    }
    if epochs is not None:
        ranges[apis.OFFSET_FOR_LEADER_EPOCH] = (0, epochs)
    return ranges | {apis.FETCH: (first_fetch, last[0]), apis.LIST_OFFSETS: (min(1, last[1]), last[1])}


#: 0.10 has neither epochs nor ids, 1.0 shows readers the epochs of batches only, 3.0 fences by them and tells where
#: logs diverge, and 3.1 has ids of topics in metadata and fetches (3.0 has them in metadata in truth).
ERAS = (
    Era(
        "0.10",
        _served(2, 1, 1, 2, 1, 0, 0, 0, 0, 0, 0, first_fetch=0),
        Rules(one_timeout=True, id_first=False, quiet_completing=False),
    ),
    Era(
        "1.0",
        _served(6, 2, 5, 3, 3, 1, 2, 1, 1, 1, 1, first_fetch=4, epochs=0),
        Rules(id_first=False, quiet_completing=False),
    ),
    Era("3.0", _served(12, 7, 9, 8, 7, 3, 7, 4, 4, 5, 3, first_fetch=4, epochs=4), Rules()),
    Era("3.1", _served(13, 7, 12, 8, 7, 3, 7, 4, 4, 5, 3, first_fetch=4, epochs=4), Rules()),
)

#: 4.0 beside: a broker assigns, by the consumer protocol (KIP-848).
CONSUMER_ERA = Era(
    "4.0", {**ERAS[-1].versions, apis.OFFSET_COMMIT: (0, 9), apis.CONSUMER_GROUP_HEARTBEAT: (0, 1)}, Rules()
)


def _producing(era: Era, produce: int, init: int | None) -> Era:
    versions = {**era.versions, apis.PRODUCE: (0, produce)}
    return era._replace(versions=versions if init is None else {**versions, apis.INIT_PRODUCER_ID: (0, init)})


#: The same with what producers need; those of 0.10 have no idempotence.
PRODUCER_ERAS = (_producing(ERAS[0], 2, None), _producing(ERAS[1], 5, 0), _producing(ERAS[2], 9, 4))


class _Topic(NamedTuple):
    """A topic, as a cluster has it from its creation to its deletion."""

    id: bytes
    logs: list[PartitionLog]


class SimulatedKafka:
    """A cluster with one group. `metadata_lag`: seconds until metadata tell who leads."""

    def __init__(self, kernel: Kernel, network: Network, era: Era, *, metadata_lag: float = 0.05) -> None:
        self.kernel = kernel
        self.network = network
        self.era = era
        self.metadata_lag = metadata_lag
        self.brokers: dict[int, KafkaBroker] = {}
        self._topics: dict[str, _Topic] = {}
        #: Those in the metadata.
        self._told: dict[str, _Topic] = {}
        self._topics_made = 0
        #: What was committed with offsets: the leader epoch, UNKNOWN by clients that do not tell it, and the text.
        self.committed_with: dict[TopicPartition, tuple[int, str | None]] = {}
        self.coordinator: Coordinator | ConsumerCoordinator = Coordinator(self, era.rules)
        if apis.CONSUMER_GROUP_HEARTBEAT in era.versions:
            self.coordinator = ConsumerCoordinator(lambda: self.kernel.now, self._by_name)
        #: The broker that coordinates; None while there is none.
        self.coordinated_by: int | None = 0
        self.requests: Counter[str] = Counter()
        #: Most fetch sessions of a broker, and all that there ever were.
        self.session_slots = 1000
        self.sessions = 0
        #: The process of each member id.
        self.processes: dict[str, str] = {}
        #: Called with the process, the member id and the offsets of each commit that is accepted.
        #: Called before a PRODUCE request is worked on ("PRODUCE"), and before its answer is sent ("PRODUCE done").
        self.watcher: Callable[[Link, str], None] = lambda link, step: None
        self.producer_ids = 0
        #: The errors with which a partition refuses the next batches that producers send it.
        self.refusals: dict[TopicPartition, list[int]] = {}
        self.commits: list[Callable[[str, str, dict[TopicPartition, int]], None]] = []

    def _by_name(self) -> dict[str, tuple[bytes, int]]:
        return {name: (topic.id, len(topic.logs)) for name, topic in self._topics.items()}

    # -- what the coordinator asks of its surroundings

    def after(self, delay: float, callback: Callable[..., None], *arguments: object) -> None:
        """Call later."""
        self.kernel.after(delay, lambda: callback(*arguments))

    def note(self, who: str, what: object) -> None:
        """Write to the timeline."""
        self.kernel.note(who, str(what))

    # -- the cluster

    def add_broker(self, broker: int, line: Line) -> KafkaBroker:
        """Start one."""
        made = self.brokers[broker] = KafkaBroker(self, broker, f"kafka{broker}", 9092, line)
        return made

    def up(self) -> list[int]:
        """The brokers that run."""
        return [number for number, broker in self.brokers.items() if broker.up]

    def log(self, partition: TopicPartition) -> PartitionLog:
        """That of a partition."""
        return self._topics[partition.topic].logs[partition.partition]

    def logs(self, topic: str) -> list[PartitionLog]:
        """Those of a topic; none if there is no such topic."""
        found = self._topics.get(topic)
        return [] if found is None else found.logs

    @property
    def partitions(self) -> list[TopicPartition]:
        """Of all topics."""
        return [
            TopicPartition.numbered(topic, number)
            for topic, (_, logs) in self._topics.items()
            for number in range(len(logs))
        ]

    def add_partitions(self, topic: str, count: int, rng: Random) -> list[TopicPartition]:
        """Make partitions of a topic up to `count`, and the topic if there is none; those that are new."""
        if topic not in self._topics:
            self._topics_made += 1
            self._topics[topic] = _Topic(self._topics_made.to_bytes(16, "big"), [])
            if topic not in self._told:
                self._tell(topic)
        logs = self._topics[topic].logs
        new = range(len(logs), count)
        logs += [PartitionLog(rng.choice(self.up())) for _ in new]
        return [TopicPartition.numbered(topic, number) for number in new]

    def delete_topic(self, topic: str) -> None:
        """Its logs are gone, and the offsets that were committed for it; metadata tell so a little late."""
        gone = self._topics.pop(topic)
        for offsets in (self.coordinator.offsets, self.committed_with):
            for partition in [each for each in offsets if each.topic == topic]:
                del offsets[partition]
        self.kernel.after(self.metadata_lag, lambda: self._tell(topic))
        for log in gone.logs:
            log.wake()

    def _tell(self, topic: str) -> None:
        """Have metadata tell the truth about a topic."""
        truth = self._topics.get(topic)
        if truth is None:
            self._told.pop(topic, None)
        else:
            self._told[topic] = truth

    @property
    def told(self) -> Mapping[str, _Topic]:
        """The topics in the metadata."""
        return self._told

    def named(self, topic_id: bytes) -> tuple[int, str]:
        """The name of the topic with this id, or the error, as a broker knows it by its metadata."""
        for name, told in self._told.items():
            if told.id == topic_id:
                truth = self._topics.get(name)
                return (0 if truth is None or truth.id == topic_id else _INCONSISTENT_ID), name
        return ErrorCode.UNKNOWN_TOPIC_ID, ""

    def append(self, partition: TopicPartition, payload: bytes) -> int:
        """Write a message; its offset."""
        log = self.log(partition)
        log.payloads.append(payload)
        log.wake()
        return len(log.payloads) - 1

    def store(self, log: PartitionLog, record_set: bytes) -> tuple[int, int]:
        """Append the batch of a producer; the error and the offset. One that is known is not appended again."""
        records = list(decode_records(record_set, 0).messages())
        payloads = [record.payload or b"" for record in records]
        offset = len(log.payloads)
        magic = record_set[_MAGIC]
        producer, sequence = _PRODUCER.unpack_from(record_set, _PRODUCER_AT) if magic == _NUMBERED else (-1, -1)
        if producer >= 0:
            batches = log.producers.setdefault(producer, [])
            known = next((at for first, count, at in batches if (first, count) == (sequence, len(payloads))), None)
            if known is not None:
                return 0, known
            expected = batches[-1][0] + batches[-1][1] if batches else 0
            if sequence != expected:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            log.producers[producer] = [*batches[1 - _REMEMBERED :], (sequence, len(payloads), offset)]
        log.payloads += payloads
        log.headers.update((offset + number, each.headers) for number, each in enumerate(records) if each.headers)
        log.wake()
        return 0, offset

    def lead(self, partition: TopicPartition, leader: int | None) -> None:
        """Another broker leads a partition from now on, or none."""
        log = self.log(partition)
        if log.leader == leader:
            return
        self._elect(log, leader)

    def truncate(self, partition: TopicPartition, end: int, leader: int) -> None:
        """An unclean election: `leader`, which never had the messages from `end` on, leads from now on.

        A broker that leads again has restarted: its connections end.
        """
        log = self.log(partition)
        log.truncate(end)
        if log.leader == leader:
            for connection in list(self.brokers[leader].connections):
                connection.link.cut()
        self._elect(log, leader)

    def _elect(self, log: PartitionLog, leader: int | None) -> None:
        log.elect(leader)
        told = leader, log.epoch

        def tell() -> None:
            if log.told[1] < told[1]:
                log.told = told

        self.kernel.after(self.metadata_lag, tell)
        log.wake()

    def stop_broker(self, number: int) -> None:
        """It ends; its partitions have no leader, and its group has no coordinator."""
        self.brokers[number].stop()
        for partition in self.partitions:
            if self.log(partition).leader == number:
                self.lead(partition, None)
        if self.coordinated_by == number:
            self.leave_group_alone()

    def take_over(self, rng: Random) -> None:
        """Running brokers take over partitions without a leader and groups without a coordinator."""
        for partition in self.partitions:
            if self.log(partition).leader is None:
                self.lead(partition, rng.choice(self.up()))
        if self.coordinated_by is None:
            self.coordinate(rng.choice(self.up()))

    def leave_group_alone(self) -> None:
        """No broker coordinates. Waiting clients get an error."""
        before, self.coordinated_by = self.coordinated_by, None
        if before is None:
            return
        self.coordinator.go_down()
        for connection in list(self.brokers[before].connections):
            connection.refuse_waiting(ErrorCode.NOT_COORDINATOR_FOR_GROUP)

    def coordinate(self, broker: int) -> None:
        """`broker` coordinates from now on, with what the log says."""
        self.leave_group_alone()
        self.coordinated_by = broker
        self.coordinator.come_up()

    # -- the group as its coordinator sees it

    @property
    def classic(self) -> Coordinator:
        """The coordinator, of a group of the classic protocol."""
        assert isinstance(self.coordinator, Coordinator)
        return self.coordinator

    def owners(self) -> dict[TopicPartition, str]:
        """The process to which each partition was assigned, if the coordinator still counts it as a member."""
        owners = {}
        if isinstance(self.coordinator, ConsumerCoordinator):
            names = {topic.id: name for name, topic in self._topics.items()}
            return {
                TopicPartition.numbered(names[topic_id], number): self.processes[member_id]
                for (topic_id, number), member_id in self.coordinator.owners().items()
                if topic_id in names
            }
        for member_id, member in self.classic.members.items():
            if member.assignment:
                for topic, numbers in decode_assignment(member.assignment).partitions:
                    for number in numbers:
                        owners[TopicPartition.numbered(topic, number)] = self.processes[member_id]
        return owners

    def members(self) -> list[str]:
        """The process of each member; of one that waits for its first answer only its id."""
        return [self.processes.get(member_id, member_id) for member_id in self.coordinator.members]

    @property
    def stable(self) -> bool:
        """Whether all members have their shares."""
        if self.coordinated_by is None:
            return False
        if isinstance(self.coordinator, ConsumerCoordinator):
            return self.coordinator.stable
        return self.classic.state is GroupState.STABLE


class KafkaBroker:
    """One broker of the cluster."""

    def __init__(self, kafka: SimulatedKafka, number: int, host: str, port: int, line: Line) -> None:
        self.kafka = kafka
        self.number = number
        self.host, self.port = host, port
        self.up = False
        self.connections: dict[_Connection, None] = {}
        #: Fetch sessions by id; they are in memory only.
        self.sessions: dict[int, FetchSession] = {}
        self._line = line
        self.start()

    def start(self) -> None:
        """Take connections."""
        self.up = True
        self.kafka.network.listen(self.host, self.port, self._accept, self._line)

    def stop(self) -> None:
        """Refuse connections and end those that are there."""
        self.up = False
        self.sessions.clear()
        self.kafka.network.unlisten(self.host, self.port)
        for connection in list(self.connections):
            connection.link.cut()

    def _accept(self, link: Link) -> _Connection:
        connection = _Connection(self, link)
        self.connections[connection] = None
        return connection


class FetchSession:
    """The partitions of a client's fetches, as a broker remembers them; by topic (name or id) and number."""

    def __init__(self, parts: Parts, answered: Parts, *, by_id: bool) -> None:
        self.parts = dict(parts)
        self.by_id = by_id
        #: Of the next request.
        self.epoch = 1
        self._ends = {key: part["high_watermark"] for key, part in answered.items()}

    def continues(self, epoch: int, named: Parts, forgotten: list[Key], *, by_id: bool) -> int:
        """The next request came; the error, if it is another one."""
        if by_id != self.by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        if epoch != self.epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        self.epoch += 1
        self.parts.update(named)
        for key in forgotten:
            self.parts.pop(key, None)
            self._ends.pop(key, None)
        return 0

    def news(self, answer: Parts) -> Parts:
        """What of an answer is new to the client. Those with data are last in line for the next one."""
        news = {
            key: part
            for key, part in answer.items()
            if part["error_code"]
            or part["records"]
            or part.get("diverging_epoch")
            or part["high_watermark"] != self._ends.get(key)
        }
        for key, part in news.items():
            self._ends[key] = part["high_watermark"]
            if part["records"] and key in self.parts:
                self.parts[key] = self.parts.pop(key)
        return news


class _Fetch:
    """A fetch that may wait for messages."""

    def __init__(self, connection: _Connection, version: int, body: dict[str, Any], reply: Callable[..., None]) -> None:
        self._connection = connection
        self._version = version
        self._body = body
        self._reply = reply
        self._done = False
        self._session: FetchSession | None = None
        self._parts = self._by_key(body["topics"])
        kafka = connection.kafka
        if code := self._begin():
            self._done = True
            reply({"error_code": code, "responses": []})
            return
        self._logs = [
            logs[number] for topic, number in self._parts if number < len(logs := kafka.logs(self._named(topic)[1]))
        ]
        self.look()
        if not self._done:
            for log in self._logs:
                log.waiting[self] = None
            kafka.kernel.after(body["max_wait_ms"] / 1000, lambda: self.look(late=True))

    def _by_key(self, topics: list[dict[str, Any]]) -> Parts:
        name = "topic" if self._version < _IDS_SINCE else "topic_id"
        return {
            (topic[name], part if isinstance(part, int) else part["partition"]): part
            for topic in topics
            for part in topic["partitions"]
        }

    def _begin(self) -> int:
        """Continue the session of the request, or end it; the error, if there is one."""
        body, sessions = self._body, self._connection.broker.sessions
        session_id, epoch = body.get("session_id", 0), body.get("session_epoch", -1)
        if epoch <= 0:
            sessions.pop(session_id, None)
            return 0
        self._session = sessions.get(session_id)
        if self._session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        forgotten = list(self._by_key(body["forgotten_topics_data"]))
        code = self._session.continues(epoch, self._parts, forgotten, by_id=self._version >= _IDS_SINCE)
        self._parts = dict(self._session.parts)
        return code

    def _named(self, topic: str | bytes) -> tuple[int, str]:
        """The name of a topic, or the error with its id."""
        return (0, topic) if isinstance(topic, str) else self._connection.kafka.named(topic)

    def look(self, *, late: bool = False) -> None:
        """Answer if there is enough, or something to refuse, or if it is `late`."""
        if self._done:
            return
        parts = {
            key: {"partition_index": key[1], **self._read(*self._named(key[0]), part)}
            for key, part in self._parts.items()
        }
        size = sum(len(part["records"]) for part in parts.values())
        said = any(part["error_code"] or part.get("diverging_epoch") for part in parts.values())
        if late or size >= self._body["min_bytes"] or said:
            self._done = True
            for log in self._logs:
                log.waiting.pop(self, None)
            self._answer(parts)

    def _answer(self, parts: Parts) -> None:
        session_id = self._body.get("session_id", 0)
        if self._session is not None:
            parts = self._session.news(parts)
        elif self._version >= _SESSIONS_SINCE:
            session_id = self._new_session(parts) if self._body["session_epoch"] == 0 else 0
        topics: dict[str | bytes, list[dict[str, Any]]] = {}
        for (topic, _), part in parts.items():
            topics.setdefault(topic, []).append(part)
        name = "topic" if self._version < _IDS_SINCE else "topic_id"
        responses = [{name: topic, "partitions": each} for topic, each in topics.items()]
        answer = {"session_id": session_id} if self._version >= _SESSIONS_SINCE else {}
        self._reply(answer | {"responses": responses})

    def _new_session(self, answer: Parts) -> int:
        kafka, sessions = self._connection.kafka, self._connection.broker.sessions
        if len(sessions) >= kafka.session_slots:
            return 0
        kafka.sessions += 1
        sessions[kafka.sessions] = FetchSession(self._parts, answer, by_id=self._version >= _IDS_SINCE)
        return kafka.sessions

    def _read(self, code: int, topic: str, part: dict[str, Any]) -> dict[str, Any]:
        log = None
        if not code:
            code, log = self._connection.led(topic, part["partition"], part.get("current_leader_epoch", UNKNOWN))
        if log is None:
            return _refused_read(code)
        end, offset = log.end, part["fetch_offset"]
        answer = {"error_code": 0, "high_watermark": end, "last_stable_offset": end, "records": b""}
        fetched = part.get("last_fetched_epoch", UNKNOWN)
        if fetched != UNKNOWN:
            known = log.end_of(fetched)
            if UNKNOWN in known:
                return _refused_read(ErrorCode.OFFSET_OUT_OF_RANGE)
            if known.epoch < fetched or known.end < offset:
                return answer | {"diverging_epoch": {"epoch": known.epoch, "end_offset": known.end}}
        if not 0 <= offset <= end:
            return _refused_read(ErrorCode.OFFSET_OUT_OF_RANGE)
        return answer | {
            "records": log.read(offset, part["partition_max_bytes"], batches=self._version >= _BATCHES_SINCE)
        }


def _refused_read(code: int) -> dict[str, Any]:
    return {"error_code": code, "high_watermark": -1, "records": b""}


def _for_each(
    topics: list[dict[str, Any]],
    make: Callable[[str, Any], dict[str, Any]],
    name: str = "name",
    number: str = "partition_index",
) -> dict[str, Any]:
    """An answer by topic and partition; `name` and `number` are their fields."""
    return {
        "topics": [
            {
                name: topic[name],
                "partitions": [{number: part[number], **make(topic[name], part)} for part in topic["partitions"]],
            }
            for topic in topics
        ]
    }


class _Connection(ServedConnection):
    def __init__(self, broker: KafkaBroker, link: Link) -> None:
        super().__init__(link)
        self.broker = broker
        self.kafka = broker.kafka
        #: Refuses the JoinGroup or SyncGroup that waits here.
        self._waiting: Callable[[int, dict[str, Any]], None] | None = None

    def lost(self) -> None:
        super().lost()
        self.broker.connections.pop(self, None)

    def serve(self, body: bytes) -> None:
        kafka = self.kafka
        key, version = read_api(body)
        api = apis.APIS[key]
        first, last = kafka.era.versions.get(api, (0, -1))
        if api is not apis.API_VERSIONS and not first <= version <= last:
            self.hang_up()
            return
        try:
            header, fields = decode_request(api, body)
        except WireError:
            self.hang_up()
            return
        kafka.requests[api.name] += 1
        answered: list[bool] = []

        def reply(answer: dict[str, Any]) -> None:
            if not answered:  # clients that were refused when the coordinator moved get no further answer
                answered.append(True)
                served = 0 if api is apis.API_VERSIONS and version > last else version
                message = ResponseMessage(ResponseHeader(header.correlation_id), answer)
                self.answer(encode_response(api, served, message))

        def work() -> None:
            if self.open:
                self._handlers[key](self, version, fields, reply)

        kafka.kernel.after(REQUEST_TIME, work)

    # -- the cluster

    def _api_versions(self, version: int, body: dict[str, Any], reply: Callable[..., None]) -> None:
        served = self.kafka.era.versions
        code = 0 if version <= served[apis.API_VERSIONS][1] else ErrorCode.UNSUPPORTED_VERSION
        ranges = [{"api_key": api.key, "min_version": low, "max_version": high} for api, (low, high) in served.items()]
        reply({"error_code": code, "api_keys": ranges})

    def _metadata(self, version: int, body: dict[str, Any], reply: Callable[..., None]) -> None:
        kafka, asked = self.kafka, body["topics"]
        names = list(kafka.told) if asked is None or (version == 0 and not asked) else [each["name"] for each in asked]
        up = kafka.up()
        topics = []
        for name in names:
            partitions = []
            told = kafka.told.get(name)
            for number, log in enumerate(() if told is None else told.logs):
                leader, epoch = log.told
                gone = leader is None or leader not in up
                partitions.append(
                    {
                        "error_code": ErrorCode.LEADER_NOT_AVAILABLE if gone else 0,
                        "partition_index": number,
                        "leader_id": -1 if gone else leader,
                        "leader_epoch": epoch,
                        "replica_nodes": list(kafka.brokers),
                        "isr_nodes": up,
                    }
                )
            topics.append(
                {
                    "error_code": 0 if told else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    "name": name,
                    "topic_id": told.id if told else NO_UUID,
                    "partitions": partitions,
                }
            )
        brokers = [
            {"node_id": number, "host": kafka.brokers[number].host, "port": kafka.brokers[number].port} for number in up
        ]
        reply({"brokers": brokers, "controller_id": up[0], "topics": topics})

    def _find(self, version: int, body: dict[str, Any], reply: Callable[..., None]) -> None:
        number = self.kafka.coordinated_by
        if number is None:
            reply({"error_code": ErrorCode.GROUP_COORDINATOR_NOT_AVAILABLE, "node_id": -1, "host": "", "port": -1})
        else:
            broker = self.kafka.brokers[number]
            reply({"error_code": 0, "node_id": number, "host": broker.host, "port": broker.port})

    # -- logs

    def led(self, topic: str, number: int, epoch: int = UNKNOWN) -> tuple[int, PartitionLog | None]:
        """The log of a partition if this broker leads it in that epoch; the error if not."""
        logs = self.kafka.logs(topic)
        if number >= len(logs):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
        log = logs[number]
        if log.leader != self.broker.number:
            return ErrorCode.NOT_LEADER_FOR_PARTITION, None
        if epoch not in (UNKNOWN, log.epoch):
            return _FENCED_EPOCH if epoch < log.epoch else _UNKNOWN_EPOCH, None
        return 0, log

    def _fetch(self, version: int, body: dict[str, Any], reply: Callable[..., None]) -> None:
        _Fetch(self, version, body, reply)

    def _offsets(self, version: int, body: dict[str, Any], reply: Callable[..., None]) -> None:
        def at(topic: str, part: dict[str, Any]) -> dict[str, Any]:
            code, log = self.led(topic, part["partition_index"], part.get("current_leader_epoch", UNKNOWN))
            if log is None:
                return {"error_code": code, "offset": -1}
            offset = 0 if part["timestamp"] == _EARLIEST else log.end
            return {"error_code": 0, "offset": offset, "leader_epoch": log.epoch_of(offset)}

        reply(_for_each(body["topics"], at))

    def _epoch_ends(self, version: int, body: dict[str, Any], reply: Callable[..., None]) -> None:
        def end(topic: str, part: dict[str, Any]) -> dict[str, Any]:
            code, log = self.led(topic, part["partition"], part.get("current_leader_epoch", UNKNOWN))
            epoch, offset = EpochEnd(UNKNOWN, UNKNOWN) if log is None else log.end_of(part["leader_epoch"])
            return {"error_code": code, "leader_epoch": epoch, "end_offset": offset}

        reply(_for_each(body["topics"], end, "topic", "partition"))

    def _produce(self, version: int, body: dict[str, Any], reply: Callable[..., None]) -> None:
        def store(topic: str, part: dict[str, Any]) -> dict[str, Any]:
            code, log = self.led(topic, part["index"])
            offset = -1
            refusals = self.kafka.refusals.get(TopicPartition.numbered(topic, part["index"]))
            if log is not None and refusals:
                code = refusals.pop(0)
            elif log is not None:
                code, offset = self.kafka.store(log, bytes(part["records"]))
            return {"error_code": code, "base_offset": offset}

        self.kafka.watcher(self.link, "PRODUCE")
        if not self.open:  # the request came too late
            return
        topics = [{"name": each["name"], "partitions": each["partition_data"]} for each in body["topic_data"]]
        stored = _for_each(topics, store, number="index")["topics"]
        answer = [{"name": each["name"], "partition_responses": each["partitions"]} for each in stored]
        self.kafka.watcher(self.link, "PRODUCE done")
        if self.open:
            reply({"responses": answer})

    def _init_producer(self, version: int, body: dict[str, Any], reply: Callable[..., None]) -> None:
        self.kafka.producer_ids += 1
        reply({"error_code": 0, "producer_id": self.kafka.producer_ids, "producer_epoch": 0})

    # -- the group

    @property
    def _coordinates(self) -> bool:
        return self.kafka.coordinated_by == self.broker.number

    def refuse_waiting(self, code: int) -> None:
        """The group is coordinated elsewhere."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting(code, {})

    def _until_answered(self, answer: Callable[[int, dict[str, Any]], None]) -> Callable[[int, dict[str, Any]], None]:
        def once(code: int, fields: dict[str, Any]) -> None:
            if self._waiting is once:
                self._waiting = None
            answer(code, fields)

        self._waiting = once
        return once

    def _consumer_heartbeat(self, version: int, body: dict[str, Any], reply: Callable[..., None]) -> None:
        kafka, member_id, epoch = self.kafka, body["member_id"], body["member_epoch"]
        assert isinstance(kafka.coordinator, ConsumerCoordinator)
        code: int = ErrorCode.NOT_COORDINATOR_FOR_GROUP
        assignment: dict[bytes, list[int]] = {}
        if self._coordinates and epoch < 0:
            code = kafka.coordinator.leave(member_id, epoch)
        elif self._coordinates:
            kafka.processes[member_id] = self.link.client
            owned = {(each["topic_id"], number) for each in body["topic_partitions"] for number in each["partitions"]}
            code, epoch, assignment = kafka.coordinator.heartbeat(
                member_id,
                epoch,
                tuple(body["subscribed_topic_names"]),
                owned,
                rebalance_timeout=body["rebalance_timeout_ms"] / 1000,
            )
        reply(
            {
                "error_code": code,
                "member_id": member_id,
                "member_epoch": epoch,
                "heartbeat_interval_ms": int(kafka.coordinator.interval * 1000),
                "assignment": {
                    "topic_partitions": [
                        {"topic_id": topic_id, "partitions": numbers} for topic_id, numbers in assignment.items()
                    ]
                },
            }
        )

    def _join(self, version: int, body: dict[str, Any], reply: Callable[..., None]) -> None:
        kafka = self.kafka
        coordinator = kafka.classic

        def answer(code: int, fields: dict[str, Any]) -> None:
            member_id = fields.get("member_id", body["member_id"])
            if not code or code == ErrorCode.MEMBER_ID_REQUIRED:
                kafka.processes[member_id] = self.link.client
            reply(
                {
                    "error_code": code,
                    "generation_id": fields.get("generation", -1),
                    "protocol_type": PROTOCOL_TYPE,
                    "protocol_name": fields.get("protocol", ""),
                    "leader": "" if code else coordinator.leader,
                    "member_id": member_id,
                    "members": [
                        {"member_id": name, "metadata": metadata} for name, metadata in fields.get("members", ())
                    ],
                }
            )

        if not self._coordinates:
            answer(ErrorCode.NOT_COORDINATOR_FOR_GROUP, {})
            return
        protocols = tuple((each["name"], each["metadata"]) for each in body["protocols"])
        session, rebalance = body["session_timeout_ms"] / 1000, body.get("rebalance_timeout_ms", -1) / 1000
        coordinator.join(body["member_id"], session, rebalance, protocols, self._until_answered(answer))

    def _sync(self, version: int, body: dict[str, Any], reply: Callable[..., None]) -> None:
        def answer(code: int, fields: dict[str, Any]) -> None:
            reply({"error_code": code, "assignment": fields.get("assignment", b"")})

        if not self._coordinates:
            answer(ErrorCode.NOT_COORDINATOR_FOR_GROUP, {})
            return
        dealt = tuple((each["member_id"], bytes(each["assignment"])) for each in body["assignments"])
        self.kafka.classic.sync(body["member_id"], body["generation_id"], dealt, self._until_answered(answer))

    def _heartbeat(self, version: int, body: dict[str, Any], reply: Callable[..., None]) -> None:
        def answer(code: int, fields: dict[str, Any]) -> None:
            reply({"error_code": code})

        if not self._coordinates:
            answer(ErrorCode.NOT_COORDINATOR_FOR_GROUP, {})
        else:
            self.kafka.classic.heartbeat(body["member_id"], body["generation_id"], answer)

    def _leave(self, version: int, body: dict[str, Any], reply: Callable[..., None]) -> None:
        member_id = body["member_id"] if version < _EACH_LEAVES_SINCE else body["members"][0]["member_id"]

        def answer(code: int, fields: dict[str, Any]) -> None:
            if version < _EACH_LEAVES_SINCE:
                reply({"error_code": code})
            else:
                reply({"error_code": 0, "members": [{"member_id": member_id, "error_code": code}]})

        if not self._coordinates:
            reply({"error_code": ErrorCode.NOT_COORDINATOR_FOR_GROUP})
        else:
            self.kafka.classic.leave(member_id, answer)

    def _offset_commit(self, version: int, body: dict[str, Any], reply: Callable[..., None]) -> None:
        kafka = self.kafka
        committed = {
            TopicPartition.numbered(topic["name"], part["partition_index"]): part
            for topic in body["topics"]
            for part in topic["partitions"]
        }
        known = set(kafka.partitions)
        offsets = {each: part["committed_offset"] for each, part in committed.items() if each in known}

        def answer(code: int, fields: dict[str, Any]) -> None:
            if not code:
                for each in offsets:
                    part = committed[each]
                    kafka.committed_with[each] = part.get("committed_leader_epoch", UNKNOWN), part["committed_metadata"]
                for observe in kafka.commits:
                    observe(self.link.client, body["member_id"], offsets)

            def stored(topic: str, part: dict[str, Any]) -> dict[str, Any]:
                missing = TopicPartition.numbered(topic, part["partition_index"]) not in known
                return {"error_code": code or (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if missing else 0)}

            reply(_for_each(body["topics"], stored))

        if not self._coordinates:
            answer(ErrorCode.NOT_COORDINATOR_FOR_GROUP, {})
        else:
            kafka.coordinator.commit(body["member_id"], body["generation_id_or_member_epoch"], offsets, answer)

    def _offset_fetch(self, version: int, body: dict[str, Any], reply: Callable[..., None]) -> None:
        offsets = self.kafka.coordinator.offsets
        code = 0 if self._coordinates else ErrorCode.NOT_COORDINATOR_FOR_GROUP

        def at(topic: str, part: Any) -> dict[str, Any]:
            partition = TopicPartition.numbered(topic, part["partition_index"])
            offset = _NO_OFFSET if code else offsets.get(partition, _NO_OFFSET)
            known = offset != _NO_OFFSET and partition in self.kafka.committed_with
            epoch, text = self.kafka.committed_with[partition] if known else (UNKNOWN, "")
            return {"committed_offset": offset, "committed_leader_epoch": epoch, "metadata": text, "error_code": code}

        asked = [
            {
                "name": topic["name"],
                "partitions": [{"partition_index": number} for number in topic["partition_indexes"]],
            }
            for topic in body["topics"]
        ]
        answer = _for_each(asked, at)
        reply(answer if version < _GROUP_ERROR_SINCE else answer | {"error_code": code})

    _handlers: ClassVar[dict[int, Callable[[_Connection, int, dict[str, Any], Callable[..., None]], None]]] = {
        apis.API_VERSIONS.key: _api_versions,
        apis.METADATA.key: _metadata,
        apis.FIND_COORDINATOR.key: _find,
        apis.FETCH.key: _fetch,
        apis.PRODUCE.key: _produce,
        apis.INIT_PRODUCER_ID.key: _init_producer,
        apis.LIST_OFFSETS.key: _offsets,
        apis.OFFSET_FOR_LEADER_EPOCH.key: _epoch_ends,
        apis.CONSUMER_GROUP_HEARTBEAT.key: _consumer_heartbeat,
        apis.JOIN_GROUP.key: _join,
        apis.SYNC_GROUP.key: _sync,
        apis.HEARTBEAT.key: _heartbeat,
        apis.LEAVE_GROUP.key: _leave,
        apis.OFFSET_COMMIT.key: _offset_commit,
        apis.OFFSET_FETCH.key: _offset_fetch,
    }
