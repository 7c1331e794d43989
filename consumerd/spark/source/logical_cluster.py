"""The brokers of a cluster of 0.8 or later, for tasks and planners: connections, who leads what, when to try again.

Strategy: one blocking connection per broker, made when it is needed and kept. Leaders move and brokers restart, so what
fails for a reason that passes is tried again, with what is known of leaders asked anew, until the time is up: `timeout`
seconds from the question on. Then the last reason is the error.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from consumerd.spark.source.errors import BrokerGoneError, BrokerReadError, BrokerRefusesError, OffsetGoneError
from consumerd.spark.source.logical_connection import MOST_BYTES, Connector
from consumerd.wire.v08.apis import METADATA
from consumerd.wire.v08.error_codes import ErrorCode, error_info

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from types import TracebackType

    from consumerd.spark.source.logical_connection import Address, LogicalConnection
    from consumerd.spark.source.option_values import BootstrapPlace
    from consumerd.wire.v08.schema import Api

    Place = tuple[str, int]

_T = TypeVar("_T")

#: The first version of METADATA that can ask for a topic without creating it, and that which has names in structs.
_NO_CREATION_SINCE: Final = 4
_STRUCTS_SINCE: Final = 9
#: Seconds between attempts, doubled each time.
_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0


class Topic(NamedTuple):
    """A topic: partition -> address of its leader, None while it has none; `internal`: it is the brokers' own."""

    leaders: Mapping[int, Address | None]
    internal: bool


class Cluster:
    """Connections are made when they are needed. Close it, or use it as a context manager.

    `retried` and `topics` raise BrokerReadError when the time is up, at once where trying again would not help
    (BrokerRefusesError); the other methods are one attempt each. Not for several threads.
    """

    def __init__(
        self, place: BootstrapPlace, timeout: float, leaders: Mapping[Place, Address | None] | None = None
    ) -> None:
        self.place = place
        self._timeout = timeout
        self._connector = Connector(place, timeout)
        self._connections: dict[Address, LogicalConnection] = {}
        #: Who leads what, as far as that is known.
        self._leaders = {each: leader for each, leader in (leaders or {}).items() if leader is not None}
        self._nodes: tuple[Address, ...] = ()

    def topics(self, wants: Callable[[str], bool], names: Collection[str] | None = None) -> dict[str, Topic]:
        """The topics that are wanted and there; `names`: those that can be. What is told about leaders is kept."""
        return self.retried(lambda: self._topics(wants, names))

    def retried(self, attempt: Callable[[], _T]) -> _T:
        """What `attempt` returns, which is repeated while it fails for a reason that passes. Raises OffsetGoneError."""
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

    def any(self) -> LogicalConnection:
        """A connection to some broker."""
        if self._connections:
            return next(iter(self._connections.values()))
        reasons = []
        for address in dict.fromkeys((*self._nodes, *self.place.servers)):
            try:
                return self.connection(address)
            except BrokerRefusesError:
                raise
            except BrokerReadError as error:
                reasons.append(str(error))
        raise BrokerGoneError(
            f"no broker of the cluster can be reached ({len(reasons)} tried); the last said: {reasons[-1]}"
        )

    def leader(self, place: Place) -> Address:
        """Who leads a partition."""
        if place not in self._leaders:
            self._topics(place[0].__eq__, [place[0]])
        leader = self._leaders.get(place)
        if leader is None:
            raise BrokerReadError(f"the partition {place[0]}/{place[1]} has no leader, or is not there any more")
        return leader

    def connection(self, address: Address) -> LogicalConnection:
        """The connection to a broker."""
        if address not in self._connections:
            try:
                self._connections[address] = self._connector.open(address)
            except BrokerReadError:
                self._forget(address)
                raise
        return self._connections[address]

    def call(
        self,
        connection: LogicalConnection,
        api: Api,
        body: dict[str, Any],
        where: str,
        version: int,
        most: int = MOST_BYTES,
    ) -> dict[str, Any]:
        """As `LogicalConnection.call`; a connection that ends is forgotten."""
        try:
            return connection.call(api, body, where, version=version, most=most)
        except BrokerReadError:
            self._forget(connection.address)
            raise

    def invalid(self, connection: LogicalConnection, what: str) -> BrokerReadError:
        """The error for an answer that is none; the connection is closed."""
        self._forget(connection.address)
        return BrokerReadError(f"broker {connection.name} {what}")

    def refused(self, code: int, what: str, place: Place | None = None) -> BrokerReadError:
        """The error for a code: BrokerRefusesError where it does not pass. `place`: whose leader it may be about."""
        info = error_info(code)
        if info.refresh and place is not None:
            self._leaders.pop(place, None)
        return (BrokerReadError if info.retriable or info.refresh else BrokerRefusesError)(f"{what}: {info}")

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

    def _topics(self, wants: Callable[[str], bool], names: Collection[str] | None) -> dict[str, Topic]:
        connection = self.any()
        version = connection.version(METADATA)
        # Naming a topic could create it in earlier versions; null, and an empty list in version 0, means all.
        asked: list[Any] | None = None if version else []
        if names is not None and version >= _NO_CREATION_SINCE:
            asked = [{"topic": name} for name in names] if version >= _STRUCTS_SINCE else list(names)
        body: dict[str, Any] = {"topics": asked}
        if version >= _NO_CREATION_SINCE:
            body["allow_auto_topic_creation"] = False
        answer = self.call(connection, METADATA, body, "its topics", version)
        nodes = {node["node_id"]: (node["host"], node["port"]) for node in answer["brokers"]}
        self._nodes = tuple(nodes.values()) or self._nodes
        found: dict[str, Topic] = {}
        for topic in answer["topic_metadata"]:
            name, code = topic["topic"], topic["topic_error_code"]
            if name is None or code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or not wants(name):
                continue
            if code:
                raise self.refused(code, f"broker {connection.name} tells nothing of the topic {name}")
            leaders = {part["partition_id"]: nodes.get(part["leader"]) for part in topic["partition_metadata"]}
            for number, leader in leaders.items():
                if leader is None:
                    self._leaders.pop((name, number), None)
                else:
                    self._leaders[name, number] = leader
            found[name] = Topic(leaders, topic.get("is_internal", False))
        return found

    def _forget(self, address: Address) -> None:
        """The connection to a broker is of no use any more, and perhaps the broker leads nothing now."""
        if (connection := self._connections.pop(address, None)) is not None:
            connection.close()
        self._leaders = {each: leader for each, leader in self._leaders.items() if leader != address}
