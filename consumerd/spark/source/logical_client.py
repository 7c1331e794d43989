"""A blocking client of a cluster of 0.8 or later, for tasks and planners: who leads what, offsets, fetches.

Strategy: one connection per broker, made when it is needed and kept. Leaders move and brokers restart, so what fails
for a reason that passes is tried again, with what is known of leaders asked anew, until the time is up: `timeout`
seconds from the question on. Then the last reason is the error.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from consumerd.spark.source.errors import BrokerGoneError, BrokerReadError, BrokerRefusesError, OffsetGoneError
from consumerd.spark.source.logical_connection import MOST_BYTES, Connector
from consumerd.wire.v08.apis import FETCH, METADATA, OFFSETS
from consumerd.wire.v08.error_codes import ErrorCode, error_info

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from types import TracebackType

    from consumerd.spark.source.logical_connection import Address, LogicalConnection
    from consumerd.spark.source.option_values import BootstrapPlace

    Place = tuple[str, int]

_T = TypeVar("_T")

#: The last version of FETCH that names topics and not their ids.
_LAST_FETCH: Final = 12
#: The first versions that know of transactions.
_ISOLATION_SINCE: Final = {FETCH.key: 4, OFFSETS.key: 2}
#: The first version of METADATA that can ask for a topic without creating it.
_NO_CREATION_SINCE: Final = 4
#: Milliseconds for which a broker may wait for the first byte.
_WAIT: Final = 500
#: What a FETCH's answer may have beside messages: aborted transactions.
_ROOM: Final = 32 << 20
_NOBODY: Final = -1
#: Seconds between attempts, doubled each time.
_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0


class Topic(NamedTuple):
    """A topic: partition -> address of its leader, None while it has none; `internal`: it is the brokers' own."""

    leaders: Mapping[int, Address | None]
    internal: bool


class Fetched(NamedTuple):
    """What a broker answered. `reach`: where what can be read ends now; `aborted`: as `decode_records` wants it."""

    data: bytes | memoryview
    reach: int
    aborted: tuple[tuple[int, int], ...]


class LogicalClient:
    """A client; connections are made when they are needed. Close it, or use it as a context manager.

    Methods raise BrokerReadError when the time is up, at once where trying again would not help (BrokerRefusesError).
    Not for several threads.
    """

    def __init__(
        self, place: BootstrapPlace, timeout: float, leaders: Mapping[Place, Address | None] | None = None
    ) -> None:
        self._place = place
        self._timeout = timeout
        self._connector = Connector(place, timeout)
        self._connections: dict[Address, LogicalConnection] = {}
        #: Who leads what, as far as that is known.
        self._leaders = {each: leader for each, leader in (leaders or {}).items() if leader is not None}
        self._nodes: tuple[Address, ...] = ()

    def topics(self, wants: Callable[[str], bool], names: Collection[str] | None = None) -> dict[str, Topic]:
        """The topics that are wanted and there; `names`: those that can be. What is told about leaders is kept."""
        return self._retried(lambda: self._topics(wants, names))

    def offsets(self, wanted: Collection[Place], when: int) -> dict[Place, int | None]:
        """Of each partition the first offset at `when` (ms since 1970, EARLIEST, LATEST) or later; None: there is none.

        Brokers before 0.10.1 name the start of a segment, before which there may be nothing of that time either. LATEST
        is where readers of the place's isolation come to.
        """
        found: dict[Place, int | None] = {}

        def ask() -> dict[Place, int | None]:
            by_leader: dict[Address, list[Place]] = {}
            for each in wanted:
                if each not in found:
                    by_leader.setdefault(self._leader(each), []).append(each)
            for leader, places in by_leader.items():
                self._ask_offsets(leader, places, when, found)
            return found

        return self._retried(ask)

    def first_at(self, place: Place, when: int, start: int, end: int) -> int:
        """Where to start, from `start` to `end`, so as to see all that is of `when` (ms since 1970) or later."""
        found = self.offsets([place], when)[place]
        if found is None:  # before 0.10.1: everything may be of that time; since: nothing is
            version = self._retried(lambda: self._connection(self._leader(place)).version(OFFSETS))
            return end if version else start
        return min(max(found, start), end)

    def fetch(self, place: Place, offset: int, size: int, most: int) -> Fetched:
        """Messages from `offset` on: about `size` bytes, at least one message or batch since 0.10.1, or nothing.

        `most`: no message or batch is larger. Raises OffsetGoneError.
        """
        return self._retried(lambda: self._fetch(place, offset, size, most))

    def close(self) -> None:
        """End all connections; more than once is fine."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- one attempt each

    def _topics(self, wants: Callable[[str], bool], names: Collection[str] | None) -> dict[str, Topic]:
        connection = self._any()
        version = connection.version(METADATA)
        # Naming a topic could create it in earlier versions; null, and an empty list in version 0, means all.
        asked: list[Any] | None = None if version else []
        if names is not None and version >= _NO_CREATION_SINCE:
            asked = [{"topic": name} for name in names] if version >= 9 else list(names)
        body: dict[str, Any] = {"topics": asked}
        if version >= _NO_CREATION_SINCE:
            body["allow_auto_topic_creation"] = False
        answer = self._call(connection, METADATA, body, "its topics", version)
        nodes = {node["node_id"]: (node["host"], node["port"]) for node in answer["brokers"]}
        self._nodes = tuple(nodes.values()) or self._nodes
        found: dict[str, Topic] = {}
        for topic in answer["topic_metadata"]:
            name, code = topic["topic"], topic["topic_error_code"]
            if name is None or code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or not wants(name):
                continue
            if code:
                raise _error(code, f"broker {connection.name} tells nothing of the topic {name}")
            leaders = {part["partition_id"]: nodes.get(part["leader"]) for part in topic["partition_metadata"]}
            for number, leader in leaders.items():
                if leader is None:
                    self._leaders.pop((name, number), None)
                else:
                    self._leaders[name, number] = leader
            found[name] = Topic(leaders, topic.get("is_internal", False))
        return found

    def _ask_offsets(self, leader: Address, places: list[Place], when: int, found: dict[Place, int | None]) -> None:
        connection = self._connection(leader)
        version = connection.version(OFFSETS)
        by_topic: dict[str, list[dict[str, int]]] = {}
        for topic, partition in places:
            asked = {"partition": partition, "timestamp": when}
            by_topic.setdefault(topic, []).append(asked | ({} if version else {"max_num_offsets": 1}))
        body: dict[str, Any] = {
            "topics": [{"topic": topic, "partitions": parts} for topic, parts in by_topic.items()],
            **self._isolation(OFFSETS.key, version),
        }
        answer = self._call(connection, OFFSETS, body, "offsets", version)
        for topic in answer["responses"]:
            for part in topic["partition_responses"]:
                each = topic["topic"], part["partition"]
                if each not in places:
                    continue
                if code := part["error_code"]:
                    raise self._refused(code, each, f"broker {connection.name} names no offset of {each[0]}/{each[1]}")
                offset = part["offset"] if version else next(iter(part["offsets"]), _NOBODY)
                found[each] = offset if offset >= 0 else None
        if missing := [each for each in places if each not in found]:
            raise self._dropped(connection, f"leaves {missing[0][0]}/{missing[0][1]} out of its answer about offsets")

    def _fetch(self, place: Place, offset: int, size: int, most: int) -> Fetched:
        connection = self._connection(self._leader(place))
        version = connection.version(FETCH, _LAST_FETCH)
        topic, partition = place
        where = f"{topic}/{partition} from {offset}"
        wanted = {"partition": partition, "fetch_offset": offset, "max_bytes": size}
        body: dict[str, Any] = {
            "replica_id": _NOBODY,
            "max_wait_time": _WAIT,
            "min_bytes": 1,
            "max_bytes": size,
            "topics": [{"topic": topic, "partitions": [wanted]}],
            **self._isolation(FETCH.key, version),
        }
        answer = self._call(connection, FETCH, body, where, version, max(size, most) + _ROOM)
        parts = [
            part
            for each in answer["responses"]
            if each["topic"] == topic
            for part in each["partition_responses"]
            if part["partition"] == partition
        ]
        code = answer.get("error_code", 0) or next((part["error_code"] for part in parts), 0)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise OffsetGoneError(f"broker {connection.name} has nothing of {where}: OFFSET_OUT_OF_RANGE")
        if code:
            raise self._refused(code, place, f"broker {connection.name} refuses a fetch of {where}")
        if len(parts) != 1:
            raise self._dropped(connection, f"has {len(parts)} partitions in its answer to a fetch of {where}")
        (part,) = parts
        committed = self._place.read_committed and part.get("last_stable_offset", -1) >= 0
        aborted = part.get("aborted_transactions") or () if self._place.read_committed else ()
        return Fetched(
            part["record_set"] or b"",
            part["last_stable_offset"] if committed else part["high_watermark"],
            tuple((each["producer_id"], each["first_offset"]) for each in aborted),
        )

    # -- brokers

    def _any(self) -> LogicalConnection:
        """A connection to some broker."""
        if self._connections:
            return next(iter(self._connections.values()))
        reasons = []
        for address in dict.fromkeys((*self._nodes, *self._place.servers)):
            try:
                return self._connection(address)
            except BrokerRefusesError:
                raise
            except BrokerReadError as error:
                reasons.append(str(error))
        raise BrokerGoneError(
            f"no broker of the cluster can be reached ({len(reasons)} tried); the last said: {reasons[-1]}"
        )

    def _leader(self, place: Place) -> Address:
        if place not in self._leaders:
            self._topics(place[0].__eq__, [place[0]])
        leader = self._leaders.get(place)
        if leader is None:
            raise BrokerReadError(f"the partition {place[0]}/{place[1]} has no leader, or is not there any more")
        return leader

    def _connection(self, address: Address) -> LogicalConnection:
        if address not in self._connections:
            try:
                self._connections[address] = self._connector.open(address)
            except BrokerReadError:
                self._forget(address)
                raise
        return self._connections[address]

    def _call(
        self,
        connection: LogicalConnection,
        api: Any,
        body: dict[str, Any],
        where: str,
        version: int,
        most: int = MOST_BYTES,
    ) -> dict[str, Any]:
        try:
            return connection.call(api, body, where, version=version, most=most)
        except BrokerReadError:
            self._forget(connection.address)
            raise

    def _forget(self, address: Address) -> None:
        """The connection to a broker is of no use any more, and perhaps the broker leads nothing now."""
        if (connection := self._connections.pop(address, None)) is not None:
            connection.close()
        self._leaders = {each: leader for each, leader in self._leaders.items() if leader != address}

    def _dropped(self, connection: LogicalConnection, what: str) -> BrokerReadError:
        self._forget(connection.address)
        return BrokerReadError(f"broker {connection.name} {what}")

    def _refused(self, code: int, place: Place, what: str) -> BrokerReadError:
        if error_info(code).refresh:
            self._leaders.pop(place, None)
        return _error(code, what)

    def _isolation(self, key: int, version: int) -> dict[str, int]:
        if version < _ISOLATION_SINCE[key]:  # nobody writes transactions to such a broker
            return {}
        return {"isolation_level": int(self._place.read_committed)}

    def _retried(self, attempt: Callable[[], _T]) -> _T:
        give_up = time.monotonic() + self._timeout
        pause = _PAUSE
        while True:
            try:
                return attempt()
            except (BrokerRefusesError, OffsetGoneError):
                raise
            except BrokerReadError:
                if time.monotonic() + pause > give_up:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _error(code: int, what: str) -> BrokerReadError:
    info = error_info(code)
    passes = info.retriable or info.refresh
    return (BrokerReadError if passes else BrokerRefusesError)(f"{what}: {info}")
