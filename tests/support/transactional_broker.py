"""A broker with transactions in memory: partitions, groups and transactional ids, as far as producers notice them.

It is channel and opener of a real `ClusterClient`. Requests and responses pass through the codec, in the version that
the client chose. `level` 2 has the second version of the protocol (KIP-890). What the coordinator writes after the end
of a transaction takes it one request, which is answered with CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from consumerd.base.partition import TopicPartition
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.settings import ClientSettings
from consumerd.net.errors import ConnectionClosedError
from consumerd.wire.v08 import APIS, Api, ErrorCode, decode_body, encode_body
from consumerd.wire.v08.records import decode_records
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions
from tests.support.prepared_requests import request_body
from tests.support.virtual_time import LoopClock

#: The position of attributes, and of producer id, epoch and first sequence number, in a record batch.
ATTRIBUTES: Final = struct.Struct(">h"), 21
NUMBERS: Final = struct.Struct(">qhi"), 43
TRANSACTIONAL: Final = 0x10
ONGOING, COMMITTED, ABORTED, EMPTY = "Ongoing", "CompleteCommit", "CompleteAbort", "Empty"


#: What happens at one request: the process ends before or after the broker carries it out, ...
FAULTS: Final = (
    *("killed before", "killed after"),
    #: ... the request or its answer is lost, the caller is cancelled, or the broker answers with an error.
    *("lost before", "lost after", "cancelled before", "cancelled after"),
    *("error 51", "error 14", "error 120", "error 47"),
)


class KilledError(Exception):
    """The process ends here: none of its requests is carried out, and none answered, until `dead` is reset."""


class Entry(NamedTuple):
    """A message of a log."""

    producer: tuple[int, int]
    payload: bytes | None


@dataclass
class Log:
    """A partition. `first_open`: by producer, where its open transaction begins."""

    entries: list[Entry] = field(default_factory=list)
    first_open: dict[int, int] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    #: Producer id -> its epoch, next sequence number, and the last batch's (sequence, offset).
    producers: dict[int, tuple[int, int, tuple[int, int]]] = field(default_factory=dict)

    @property
    def committed(self) -> list[bytes | None]:
        """What readers of committed messages get: up to the first open transaction."""
        stable = min(self.first_open.values(), default=len(self.entries))
        return [each.payload for at, each in enumerate(self.entries[:stable]) if at not in self.aborted]


@dataclass
class KnownTransaction:
    """What the coordinator knows of a transactional id."""

    producer_id: int
    epoch: int
    state: str = EMPTY
    last_epoch: int = -1
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    #: Requests that are still answered with CONCURRENT_TRANSACTIONS.
    busy: int = 0


class TransactionalBroker:
    """The broker, its only channel, and the opener of that."""

    def __init__(self, level: int = 2, partitions: int = 2, topics: tuple[str, ...] = ("t",)) -> None:
        self.level = level
        self.topics = dict.fromkeys(topics, partitions)
        self.logs: defaultdict[TopicPartition, Log] = defaultdict(Log)
        self.transactions: dict[str, KnownTransaction] = {}
        self.offsets: dict[tuple[str, TopicPartition], int] = {}
        self.pending: defaultdict[int, dict[tuple[str, TopicPartition], int]] = defaultdict(dict)
        #: The text of the last offset that was sent.
        self.texts: dict[tuple[str, TopicPartition], str] = {}
        #: Group -> its generation and members.
        self.groups: dict[str, tuple[int, set[str]]] = {}
        self.asked: list[tuple[str, int, dict[str, Any]]] = []
        self.counts: Counter[str] = Counter()
        self.ids = 100
        #: Called before and after a request is carried out. May raise, or return an error code in its place.
        self.before: Callable[[Api[Any, Any]], int | None] = lambda _: None
        self.after: Callable[[Api[Any, Any]], None] = lambda _: None
        features = {"transaction.version": level} if level > 1 else {}
        self.versions = BrokerVersions(
            "b:1", BrokerRelease.V0_10_OR_NEWER, {key: api.versions for key, api in APIS.items()}, features
        )
        self.address = "b:1"
        self.in_flight = 0
        #: Whether the process that asks has ended.
        self.dead = False
        self.closed = False

    def client(self) -> ClusterClient:
        """A client of this broker, in virtual time."""
        opener: Any = self
        return ClusterClient(
            [("b", 1)], opener, ClientSettings(), clock=LoopClock(), rng=random.Random(1), on_retry=lambda *_: None
        )

    async def open(self, host: str, port: int) -> TransactionalBroker:
        del host, port
        return self

    def forget(self, host: str, port: int) -> None:
        """Nothing is remembered."""

    async def close(self) -> None:
        """It stays."""

    def abort(self) -> None:
        """It stays."""

    async def call(self, api: Api[Any, Any], body: Any, *, version: int | None = None, **_: Any) -> dict[str, Any]:
        version = self.versions.pick(api) if version is None else version
        if isinstance(body, dict):
            body = decode_body(api, "request", version, encode_body(api, "request", version, body))
        else:
            body = request_body(api, body)
        await asyncio.sleep(0.001)
        try:
            if self.dead:
                raise KilledError
            self.counts[api.name] += 1
            self.asked.append((api.name, version, body))
            error = self.before(api)
            answer = getattr(self, _method(api.name))(version, body, error)
            self.after(api)
        except KilledError:
            self.dead = True
            while self.dead:
                await asyncio.sleep(1.0)
            raise lost() from None
        return decode_body(api, "response", version, encode_body(api, "response", version, answer))

    def post(self, api: Api[Any, Any], body: Any, settle: Callable[[Any], object], *, version: int, **_: Any) -> bool:
        """As a broker's reader does it: the answer comes in a later turn of the loop."""

        def settled(called: asyncio.Task[dict[str, Any]]) -> None:
            if not called.cancelled():
                settle(called.exception() or called.result())

        asyncio.ensure_future(self.call(api, body, version=version)).add_done_callback(settled)
        return True

    # -- what it shows

    def committed(self, topic: str = "t") -> list[bytes | None]:
        """What readers of committed messages get of a topic."""
        return [
            payload
            for number in range(self.topics[topic])
            for payload in self.logs[TopicPartition.numbered(topic, number)].committed
        ]

    @property
    def hanging(self) -> list[TopicPartition]:
        """Partitions with an open transaction."""
        return [partition for partition, log in self.logs.items() if log.first_open]

    # -- requests

    def _metadata(self, version: int, body: dict[str, Any], error: int | None) -> dict[str, Any]:
        del version, error
        names = self.topics if body["topics"] is None else [topic["name"] for topic in body["topics"]]
        part = {"error_code": 0, "leader_id": 0, "leader_epoch": 0, "replica_nodes": [0], "isr_nodes": [0]}
        return {
            "brokers": [{"node_id": 0, "host": "b", "port": 1, "rack": None}],
            "cluster_id": "cluster",
            "controller_id": 0,
            "topics": [
                {
                    "error_code": 0,
                    "name": name,
                    "topic_id": name.encode().ljust(16, b"."),
                    "partitions": [
                        {**part, "partition_index": number, "offline_replicas": []}
                        for number in range(self.topics[name])
                    ],
                }
                for name in names
            ],
        }

    def _find_coordinator(self, version: int, body: dict[str, Any], error: int | None) -> dict[str, Any]:
        del version
        found = {"node_id": 0, "host": "b", "port": 1, "error_code": error or 0, "error_message": None}
        return {"coordinators": [{"key": key, **found} for key in body["coordinator_keys"]]}

    def _init_producer_id(self, version: int, body: dict[str, Any], error: int | None) -> dict[str, Any]:
        del version
        if error:
            return {"error_code": error, "producer_id": -1, "producer_epoch": -1}
        name = body["transactional_id"]
        known = self.transactions.get(name)
        if known is None:
            self.ids += 1
            known = self.transactions[name] = KnownTransaction(self.ids, -1)
        given = body["producer_id"], body["producer_epoch"]
        if given[0] >= 0 and given not in {(known.producer_id, known.epoch), (known.producer_id, known.last_epoch)}:
            return {"error_code": 90, "producer_id": -1, "producer_epoch": -1}
        if known.state == ONGOING:
            self._end(known, COMMITTED if known.epoch < 0 else ABORTED, bump=True)
        if code := self._busy(known):
            return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
        known.last_epoch, known.epoch, known.state = -1, known.epoch + 1, EMPTY
        return {"error_code": 0, "producer_id": known.producer_id, "producer_epoch": known.epoch}

    def _refusal(self, body: dict[str, Any]) -> int:
        known = self.transactions.get(body["transactional_id"])
        if known is None or known.producer_id != body["producer_id"]:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if known.epoch != body["producer_epoch"]:
            return ErrorCode.PRODUCER_FENCED
        return self._busy(known)

    @staticmethod
    def _busy(known: KnownTransaction) -> int:
        known.busy -= known.busy > 0
        return ErrorCode.CONCURRENT_TRANSACTIONS if known.busy else 0

    def _add_partitions_to_txn(self, version: int, body: dict[str, Any], error: int | None) -> dict[str, Any]:
        del version
        code = error or self._refusal(body)
        parts = [
            TopicPartition.numbered(topic["name"], number) for topic in body["topics"] for number in topic["partitions"]
        ]
        if not code:
            self._add(self.transactions[body["transactional_id"]], parts)
        return {
            "results_by_topic": [
                {
                    "name": topic["name"],
                    "results_by_partition": [
                        {"partition_index": number, "partition_error_code": code} for number in topic["partitions"]
                    ],
                }
                for topic in body["topics"]
            ]
        }

    @staticmethod
    def _add(known: KnownTransaction, parts: list[TopicPartition], group: str | None = None) -> None:
        if known.state != ONGOING:
            known.state = ONGOING
            known.partitions, known.groups = set(), set()
        known.partitions.update(parts)
        known.groups.update([] if group is None else [group])

    def _add_offsets_to_txn(self, version: int, body: dict[str, Any], error: int | None) -> dict[str, Any]:
        del version
        code = error or self._refusal(body)
        if not code:
            self._add(self.transactions[body["transactional_id"]], [], body["group_id"])
        return {"error_code": code}

    def _txn_offset_commit(self, version: int, body: dict[str, Any], error: int | None) -> dict[str, Any]:
        group = body["group_id"]
        code = error or (self._refusal(body) if version >= 5 else 0)
        generation, members = self.groups.get(group, (-1, {""}))
        if not code and body["generation_id"] >= 0:
            if body["member_id"] not in members:
                code = ErrorCode.UNKNOWN_MEMBER_ID
            elif body["generation_id"] != generation:
                code = ErrorCode.ILLEGAL_GENERATION
        known = self.transactions.get(body["transactional_id"])
        if not code and version < 5 and (known is None or group not in known.groups or known.state != ONGOING):
            code = 48
        if not code and known is not None:
            self._add(known, [], group)
            for topic in body["topics"]:
                for part in topic["partitions"]:
                    place = group, TopicPartition.numbered(topic["name"], part["partition_index"])
                    self.pending[body["producer_id"]][place] = part["committed_offset"]
                    self.texts[place] = part["committed_metadata"]
        return {
            "topics": [
                {
                    "name": topic["name"],
                    "partitions": [
                        {"partition_index": part["partition_index"], "error_code": code} for part in topic["partitions"]
                    ],
                }
                for topic in body["topics"]
            ]
        }

    def _offset_fetch(self, version: int, body: dict[str, Any], error: int | None) -> dict[str, Any]:
        assert version == 7
        assert body["require_stable"]
        group = body["group_id"]
        held = {place for pending in self.pending.values() for place in pending}
        topics = []
        for topic in body["topics"]:
            parts = []
            for number in topic["partition_indexes"]:
                place = group, TopicPartition.numbered(topic["name"], number)
                code = error or (ErrorCode.UNSTABLE_OFFSET_COMMIT if place in held else 0)
                found = {"committed_offset": self.offsets.get(place, -1), "metadata": self.texts.get(place, "")}
                parts.append({"partition_index": number, "error_code": code, **found})
            topics.append({"name": topic["name"], "partitions": parts})
        return {"error_code": 0, "topics": topics}

    def _end_txn(self, version: int, body: dict[str, Any], error: int | None) -> dict[str, Any]:
        wanted = COMMITTED if body["committed"] else ABORTED
        known = self.transactions.get(body["transactional_id"])
        again = known is not None and version >= 5 and body["producer_epoch"] == known.last_epoch
        code = error or (0 if again else self._refusal(body))
        if code or known is None:
            return {"error_code": code}
        if known.state == ONGOING and not again:
            self._end(known, wanted, bump=version >= 5)
        elif known.state == EMPTY and wanted == ABORTED and version >= 5:
            known.last_epoch, known.epoch = known.epoch, known.epoch + 1
        elif known.state != wanted:
            return {"error_code": 48}
        return {"error_code": 0, "producer_id": known.producer_id, "producer_epoch": known.epoch}

    def _end(self, known: KnownTransaction, state: str, *, bump: bool) -> None:
        for partition in known.partitions:
            log = self.logs[partition]
            start = log.first_open.pop(known.producer_id, None)
            if start is not None and state == ABORTED:
                log.aborted.update(
                    at for at in range(start, len(log.entries)) if log.entries[at].producer[0] == known.producer_id
                )
        pending = self.pending.pop(known.producer_id, {})
        if state == COMMITTED:
            self.offsets |= pending
        known.state, known.busy = state, 2
        if bump:
            known.last_epoch, known.epoch = known.epoch, known.epoch + 1

    def _produce(self, version: int, body: dict[str, Any], error: int | None) -> dict[str, Any]:
        names = {name.encode().ljust(16, b"."): name for name in self.topics}
        responses = []
        for topic in body["topic_data"]:
            name = names[topic["topic_id"]] if version > 12 else topic["name"]
            parts = []
            for part in topic["partition_data"]:
                where = TopicPartition.numbered(name, part["index"])
                code, base = (error, -1) if error else self._append(version, body, where, part["records"])
                parts.append({"index": part["index"], "error_code": code, "base_offset": base})
            responses.append({"name": name, "topic_id": topic.get("topic_id", bytes(16)), "partition_responses": parts})
        return {"responses": responses}

    def _append(self, version: int, body: dict[str, Any], where: TopicPartition, data: bytes) -> tuple[int, int]:
        producer, epoch, sequence = NUMBERS[0].unpack_from(data, NUMBERS[1])
        assert ATTRIBUTES[0].unpack_from(data, ATTRIBUTES[1])[0] & TRANSACTIONAL
        payloads = decode_records(data, 0).payloads
        known, log = self.transactions.get(body["transactional_id"]), self.logs[where]
        if known is None or known.producer_id != producer:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING, -1
        if known.epoch != epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        if version >= 12:
            if code := self._busy(known):
                return code, -1
            self._add(known, [where])
        elif known.state != ONGOING or where not in known.partitions:
            return 48, -1
        at, following, last = log.producers.get(producer, (-1, 0, (-1, -1)))
        if at == epoch and last[0] == sequence:
            return 0, last[1]
        if sequence != (following if at == epoch else 0):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        base = len(log.entries)
        log.entries += [Entry((producer, epoch), payload) for payload in payloads]
        log.first_open.setdefault(producer, base)
        log.producers[producer] = epoch, sequence + len(payloads), (sequence, base)
        return 0, base


def _method(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def lost() -> ConnectionClosedError:
    """The connection ends without an answer."""
    return ConnectionClosedError("the connection to b:1 ended")


class Strike:
    """A fault at the request of a broker with a number; `happened` at the API with this name."""

    def __init__(self, broker: TransactionalBroker, fault: str, place: int) -> None:
        self.happened = ""
        self.running: asyncio.Task[None] | None = None
        self._kind, self._when = fault.split()
        self._place = place
        self._requests = 0
        broker.before = self.before
        broker.after = self.after

    def before(self, api: Api[Any, Any]) -> int | None:
        self._requests += api.name not in {"Metadata", "FindCoordinator"}
        if self._kind == "error" and self._is_here():
            self.happened = api.name
            return int(self._when)
        self._strike(api, "before")
        return None

    def after(self, api: Api[Any, Any]) -> None:
        self._strike(api, "after")

    def _is_here(self) -> bool:
        return not self.happened and self._requests == self._place

    def _strike(self, api: Api[Any, Any], moment: str) -> None:
        if moment != self._when or not self._is_here():
            return
        self.happened = api.name
        if self._kind == "lost":
            raise lost()
        assert self.running is not None
        self.running.cancel()
        if self._kind == "killed":
            raise KilledError
