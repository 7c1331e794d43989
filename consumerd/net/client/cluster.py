"""A client of one cluster since 0.8: metadata, leaders and coordinators, over one pipelined connection per broker.

Strategy: connections are opened when they are needed and shared by all callers; a caller that finds one closed reopens
it, one attempt at a time per broker. There is no background task: metadata are requested when they are needed and
missing or old, and again on the guide's two triggers, an answer that says "not the leader" (`stale`) and a
broker that cannot be reached. Brokers found by metadata come first, then the bootstrap list, each in random order, so
that a cluster that moved step by step is still found. A broker that demands to bootstrap again (KIP-1102) makes the
client forget what it knows: all connections are closed, and the other servers of the bootstrap list are asked.

`call_*` are single attempts; `retrying` repeats transient errors (connections, retriable error codes) until
it succeeds or the time is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from operator import attrgetter
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar
from weakref import WeakSet

from consumerd.base.errors import BrokerError, NotFoundError
from consumerd.net.client.channel import Channel, KnownResponse
from consumerd.net.client.errors import (
    BrokerRefusedError,
    NoBrokerReachedError,
    UnavailableError,
    V07BrokerError,
    error_of,
    topic_error,
)
from consumerd.net.client.metadata import MISSING_TOPIC, NO_CREATION_SINCE, ClusterMetadata, Node, metadata_body
from consumerd.net.client.opening import ChannelOpener
from consumerd.net.client.retrying import log_retry, passes
from consumerd.net.client.settings import ClientSettings
from consumerd.net.errors import ConnectError, ConnectionClosedError
from consumerd.wire.v08.apis import FIND_COORDINATOR, METADATA
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.schema import NO_UUID, Api, RequestT, ResponseT

if TYPE_CHECKING:
    from consumerd.base.ports import Clock
    from consumerd.wire.v08.message_types import FindCoordinatorRequest

_T = TypeVar("_T")
Address = tuple[str, int]
_CLOSED = "the client of this cluster was closed"
#: The key types of FIND_COORDINATOR: a group, a transactional id.
GROUP: Final = 0
TRANSACTION: Final = 1
_KIND: Final = {GROUP: "group", TRANSACTION: "transactional id"}
#: The first version of FIND_COORDINATOR that asks for several groups (3.0).
_SEVERAL_GROUPS = 4
#: The first version of FIND_COORDINATOR that has a key type.
_KINDS = 1
#: Number of answers that a topic does not exist before that is believed; the pauses take some 0.7 s together.
_LOOKS = 4


class _KnownMetadata(NamedTuple):
    """A request for metadata, the last response to it, and the metadata that already include that."""

    request: tuple[int, list[str] | None, bool]
    response: KnownResponse
    metadata: ClusterMetadata


class _Refresh:
    """A request for metadata whose result others wait for.

    They continue one turn of the loop after `over` is set, so what all ask for next is one round (`Rounds`).
    """

    __slots__ = ("error", "over")

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.error: BrokerError | None = None


class ClusterClient:
    """Connections to one cluster. `async with` closes them; it may also be used without, and closed by `close`.

    `bootstrap` may be empty, if `begin_with` adds brokers later. `on_retry(what, error)` is called when `retrying`
    repeats something.
    """

    def __init__(
        self,
        bootstrap: Sequence[Address],
        opener: ChannelOpener,
        settings: ClientSettings,
        *,
        clock: Clock,
        rng: Random,
        on_retry: Callable[[str, BrokerError], None] = log_retry,
    ) -> None:
        self._on_retry = on_retry
        self._bootstrap = list(bootstrap)
        self._opener = opener
        self.settings = settings
        self._clock = clock
        self._rng = rng
        self.metadata = ClusterMetadata()
        self._known: _KnownMetadata | None = None
        self._asked_at: dict[str, float] = {}
        self._stale: set[str] = set()
        self._refreshing = asyncio.Lock()
        #: The end of the request of `topics` that is under way.
        self._awaited: _Refresh | None = None
        self._channels: dict[Address, Channel] = {}
        #: The channels of `private_channel` that somebody still has.
        self._private: WeakSet[Channel] = WeakSet()
        self._opening: dict[Address, asyncio.Lock] = {}
        #: By key type and name.
        self._coordinators: dict[tuple[int, str], int] = {}
        self._closed = False

    def begin_with(self, bootstrap: Sequence[Address]) -> None:
        """Use these brokers from now on when no broker of the metadata can be reached."""
        self._bootstrap = list(bootstrap)

    # -- connections

    async def channel(self, host: str, port: int) -> Channel:
        """Return the shared channel to an address. Raises BrokerError."""
        address = host, port
        async with self._opening.setdefault(address, asyncio.Lock()):
            if (found := self._open_channel(address)) is not None:  # another caller was faster
                return found
            if self._channels.pop(address, None) is not None:
                self._opener.forget(host, port)
            opened = await self._opener.open(host, port)
            if self._closed:
                opened.abort()
                raise BrokerError(_CLOSED)
            self._channels[address] = opened
            return opened

    def _open_channel(self, address: Address) -> Channel | None:
        if self._closed:
            raise BrokerError(_CLOSED)
        found = self._channels.get(address)
        return None if found is None or found.closed else found

    def open_node_channel(self, node_id: int) -> Channel | None:
        """Return the channel to a broker of the metadata; None if it is not open. Raises BrokerError once closed."""
        node = self.metadata.nodes.get(node_id)
        return None if node is None else self._open_channel((node.host, node.port))

    async def _node(self, node_id: int) -> Node:
        if (node := self.metadata.nodes.get(node_id)) is None:
            node = (await self.refresh()).nodes.get(node_id)
        if node is None:
            # Brokers learn at different times that one came or went: others may name it now, or another soon.
            raise UnavailableError(f"broker {node_id} is not alive, or is not part of the cluster")
        return node

    async def node_channel(self, node_id: int) -> Channel:
        """Return the channel to a broker of the metadata. Raises BrokerError, and then marks the metadata as old."""
        node = await self._node(node_id)
        try:
            return await self.channel(node.host, node.port)
        except BrokerError:
            self.stale()
            raise

    async def private_channel(self, node_id: int) -> Channel:
        """Open a new channel to a broker, for the caller alone, which closes it. Raises as `node_channel`."""
        node = await self._node(node_id)
        try:
            opened = await self._opener.open(node.host, node.port)
        except BrokerError:
            self.stale()
            self._opener.forget(node.host, node.port)
            raise
        self._private.add(opened)
        return opened

    async def any_channel(self, besides: Container[Address] = ()) -> Channel:
        """Return the channel to some broker, an open one if there is any. Raises NoBrokerReachedError with the last
        reason.

        `besides`: servers of the bootstrap list that are not asked.
        """
        # A broker that has left another request unanswered may hang: it is not asked if there is another.
        if opened := [channel for channel in self._channels.values() if not channel.closed]:
            return min(opened, key=attrgetter("in_flight"))
        known = [(node.host, node.port) for node in self.metadata.nodes.values()]
        self._rng.shuffle(known)
        first = [address for address in self._bootstrap if address not in known and address not in besides]
        self._rng.shuffle(first)
        tried: list[BrokerError] = []
        for host, port in known + first:
            try:
                return await self.channel(host, port)
            except BrokerError as error:
                tried.append(error)
        if tried and all(isinstance(error, V07BrokerError) for error in tried):
            raise tried[-1]  # trying again does not help
        last = tried[-1] if tried else "none is known yet"
        raise NoBrokerReachedError(
            f"no broker of the cluster can be reached ({len(tried)} tried); last error: {last}", tried
        )

    def _bootstrap_again(self) -> None:
        """Forget all that brokers said, and drop all connections to them."""
        for channel in (*self._channels.values(), *self._private):
            channel.abort()
        self._coordinators.clear()
        self.metadata = ClusterMetadata()

    async def close(self) -> None:
        """Close all connections. Never raises."""
        self._closed = True
        channels = list(self._channels.values())
        self._channels.clear()
        await asyncio.gather(*(channel.close() for channel in channels))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- metadata

    def stale(self, topics: Iterable[str] = ()) -> None:
        """Mark the metadata of `topics` (without any, of all) as stale: they are requested before their next use."""
        self._stale.update(topics or self.metadata.topics)

    def is_fresh(self, topic: str) -> bool:
        """Whether the topic is in the metadata, and neither old nor stale."""
        if topic in self._stale or topic not in self.metadata.topics:
            return False
        return self._clock.monotonic() - self._asked_at.get(topic, 0.0) < self.settings.metadata_max_age

    async def refresh(
        self, topics: Sequence[str] | None = (), *, create: bool = False, never_create: bool = False
    ) -> ClusterMetadata:
        """Ask some broker for `topics`, for none (just the brokers), or for all (None). Raises BrokerError.

        `create`: the brokers may create topics that do not exist, if their configuration says so. Brokers before 0.11
        have no such switch; with `never_create` these are asked for all topics instead.
        """
        async with self._refreshing:
            return await self._refresh(topics, create=create, never_create=never_create)

    async def _refresh(
        self, topics: Sequence[str] | None, *, create: bool, never_create: bool = False
    ) -> ClusterMetadata:
        """As `refresh`, with the lock held."""
        left: set[Address] = set()
        while True:
            channel = await self.any_channel(left)
            try:
                return await self._refresh_from(channel, topics, create=create, never_create=never_create)
            except BrokerRefusedError as error:
                if error.code != ErrorCode.REBOOTSTRAP_REQUIRED:
                    raise
                left.update(address for address in self._bootstrap if "{}:{}".format(*address) == channel.address)
                self._bootstrap_again()
                if left.issuperset(self._bootstrap):
                    raise UnavailableError(str(error)) from error
                self._on_retry("bootstrap again", error)

    async def _refresh_from(
        self, channel: Channel, topics: Sequence[str] | None, *, create: bool, never_create: bool
    ) -> ClusterMetadata:
        version = channel.versions.pick(METADATA)
        if never_create and version < NO_CREATION_SINCE:
            topics = None
        names: list[str] | None = None if topics is None else list(topics)
        if version == 0:
            # An empty list means all; no request is for none, so the known topics are requested again.
            names = [] if names is None else names or sorted(self.metadata.topics)[:1]
        request = version, names, create
        known, self._known = self._known, None
        if known is None or known.request != request or known.metadata is not self.metadata:
            known = _KnownMetadata(request, KnownResponse(), self.metadata)
        body = metadata_body(version, names, create=create)
        try:
            answer = await channel.call(METADATA, body, version=version, known=known.response)
        except ConnectionClosedError:
            channel.abort()
            raise
        if error := error_of(answer.get("error_code", 0), f"broker {channel.address} returned no metadata"):
            raise error
        complete = topics is None or (version == 0 and not names)
        if answer:
            self.metadata = self.metadata.updated(answer, complete=complete)
        if not answer or self.metadata.is_settled:
            self._known = known._replace(metadata=self.metadata)
        now = self._clock.monotonic()
        for topic in self.metadata.topics if complete else names or ():
            self._asked_at[topic] = now
            self._stale.discard(topic)
        return self.metadata

    async def topics(self, names: Sequence[str], *, create: bool = False) -> ClusterMetadata:
        """Return metadata with `names`, requested if they are missing, old or stale. Raises BrokerError.

        Callers that wait for a request of another one continue together, with its error if it fails.
        """
        while not all(map(self.is_fresh, names)):
            if (awaited := self._awaited) is not None:
                await awaited.over.wait()
                if awaited.error is not None:
                    raise awaited.error
                continue
            awaited = self._awaited = _Refresh()
            try:
                async with self._refreshing:
                    if missing := [name for name in names if not self.is_fresh(name)]:
                        await self._refresh(missing, create=create)
                break
            except BrokerError as error:
                awaited.error = error
                raise
            finally:
                self._awaited = None
                awaited.over.set()
        return self.metadata

    async def leader(self, topic: str, partition: int) -> Node:
        """Return the leader of a partition. Raises BrokerRefusedError or BrokerError while there is none."""
        known = self.metadata
        metadata = await self.topics([topic])
        if metadata is known and partition not in metadata.topics[topic].partitions:
            self.stale([topic])  # it was added since: waiting until they are old would be an error for each partition
            metadata = await self.topics([topic])
        node = metadata.leader(topic, partition)
        if node is not None:
            return node
        raise self.leaderless(topic, partition)

    def known_leader(self, topic: str, partition: int) -> Node | None:
        """Return the leader of a partition; None if there is none, or the metadata of the topic are old or missing."""
        return self.metadata.leader(topic, partition) if self.is_fresh(topic) else None

    def known_topic_id(self, topic: str) -> bytes:
        """Return the id of a topic; NO_UUID if it has none, or the metadata of the topic are old or missing."""
        return self.metadata.topic_id(topic) if self.is_fresh(topic) else NO_UUID

    def leaderless(self, topic: str, partition: int) -> BrokerError:
        """Return the reason why a partition has no leader, by the metadata, and mark those of its topic as stale."""
        self.stale([topic])
        found = self.metadata.topics.get(topic)
        what = f"{topic}/{partition} has no leader"
        if found is None:
            return BrokerError(f"{what}: the brokers returned no metadata of the topic {topic!r}")
        if error := topic_error(found.error, what, topic):
            return error
        entry = found.partitions.get(partition)
        if entry is None:
            return BrokerError(f"{what}: the topic has {len(found.partitions)} partitions")
        return error_of(entry.error, what) or UnavailableError(f"{what}: broker {entry.leader} is not alive")

    # -- requests

    async def call_node(self, node_id: int, api: Api[RequestT, ResponseT], body: RequestT, **options: Any) -> ResponseT:
        """Send a request to one broker. One attempt; raises as `Channel.call` and BrokerError."""
        channel = await self.node_channel(node_id)
        return await channel.call(api, body, **options)

    async def coordinator(self, name: str, kind: int = GROUP) -> int:
        """Return the id of the broker that coordinates a group or transactional id (`kind`).

        One attempt. Raises BrokerRefusedError, BrokerError.
        """
        known = self._coordinators.get((kind, name))
        if known is not None and known in self.metadata.nodes:
            return known
        found = (await self._look_up(await self.any_channel(), [name], kind))[name]
        if isinstance(found, BrokerError):
            raise found
        return found

    async def find_coordinators(self, groups: Iterable[str]) -> None:
        """Look up the coordinators of several groups in one request, where brokers take one for several (since 3.0).

        `coordinator` looks those up by itself that are not found, and has the error. One attempt. Raises BrokerError.
        """
        groups = [group for group in groups if self._coordinators.get((GROUP, group)) not in self.metadata.nodes]
        channel = await self.any_channel()
        if len(groups) > 1 and channel.versions.has(FIND_COORDINATOR, _SEVERAL_GROUPS):
            await self._look_up(channel, groups)

    async def _look_up(self, channel: Channel, names: Sequence[str], kind: int = GROUP) -> dict[str, int | BrokerError]:
        """The coordinators of names, which are kept, or why there is none: one request, of old versions for one."""
        version = channel.versions.pick(FIND_COORDINATOR, at_least=0 if kind == GROUP else _KINDS)
        several = version >= _SEVERAL_GROUPS
        body: FindCoordinatorRequest = {"coordinator_keys": names} if several else {"key": names[0]}
        if kind != GROUP:
            body["key_type"] = kind
        answer = await channel.call(FIND_COORDINATOR, body, version=version)
        what = {name: f"broker {channel.address} returned no coordinator of {_KIND[kind]} {name!r}" for name in names}
        found: dict[str, int | BrokerError] = {name: BrokerError(text) for name, text in what.items()}
        entries = [(each["key"], each) for each in answer["coordinators"]] if several else [(names[0], answer)]
        for name, entry in entries:
            if name in what:
                error = error_of(entry["error_code"], what[name], entry.get("error_message"))
                found[name] = error or entry["node_id"]
        known = {(kind, name): node_id for name, node_id in found.items() if isinstance(node_id, int)}
        if not self.metadata.nodes.keys() >= set(known.values()):
            await self.refresh()
        self._coordinators |= known
        return found

    async def coordinator_channel(self, name: str, kind: int = GROUP) -> Channel:
        """Return the channel to the coordinator of a group or transactional id (`kind`).

        One attempt; a coordinator that cannot be reached is forgotten. Raises as `coordinator` and `node_channel`.
        """
        node_id = await self.coordinator(name, kind)
        try:
            return await self.node_channel(node_id)
        except (ConnectError, ConnectionClosedError):
            self.forget_coordinator(name, kind)
            raise

    def forget_coordinator(self, name: str, kind: int = GROUP) -> None:
        """Forget the coordinator, which proved wrong: the next call looks it up."""
        self._coordinators.pop((kind, name), None)

    async def call_coordinator(
        self, name: str, api: Api[RequestT, ResponseT], body: RequestT, *, kind: int = GROUP, **options: Any
    ) -> ResponseT:
        """Send a request to the coordinator of a group, or of a transactional id (`kind`).

        One attempt; a coordinator that cannot be reached is forgotten.
        """
        channel = await self.coordinator_channel(name, kind)
        try:
            return await channel.call(api, body, **options)
        except ConnectionClosedError:
            self.forget_coordinator(name, kind)
            raise

    async def retrying(
        self,
        what: str,
        attempt: Callable[[], Awaitable[_T]],
        *,
        timeout: float | None = None,
        passes: Callable[[BrokerError], bool] = passes,
    ) -> _T:
        """Repeat `attempt` while it fails with transient errors. Raises its last error when the time is up.

        `timeout`: seconds from the first attempt on; by default those of the settings. Pauses double and are jittered.
        `passes`: whether an error is worth another attempt; the first that is, is reported.
        """
        give_up = self._clock.monotonic() + (self.settings.retry_timeout if timeout is None else timeout)
        pause = self.settings.retry_backoff_min
        reported = False
        while True:
            try:
                return await attempt()
            except BrokerError as error:
                wait = pause * (0.5 + self._rng.random())
                if not passes(error) or self._clock.monotonic() + wait > give_up:
                    raise
                if not reported:
                    self._on_retry(what, error)
                    reported = True
            await self._clock.sleep(wait)
            pause = min(2 * pause, self.settings.retry_backoff_max)


async def topic_partitions(client: ClusterClient, topics: Sequence[str]) -> dict[str, list[int]]:
    """Return the numbers of the partitions of each topic, sorted. Brokers are asked not to create any (since 0.11).

    Brokers learn of a new topic at different times, so a broker that does not have it yet is asked a few more times.

    Raises NotFoundError for a topic that does not exist, BrokerRefusedError for one that may not be seen or has no
    leaders, BrokerError.
    """
    looks = 0

    async def ask() -> dict[str, list[int]]:
        nonlocal looks
        metadata = await client.refresh(topics)
        found: dict[str, list[int]] = {}
        for name in topics:
            topic = metadata.topics.get(name, MISSING_TOPIC)
            if topic.error == MISSING_TOPIC.error:
                looks += 1
                if looks >= _LOOKS:
                    raise NotFoundError(
                        f"the brokers have no topic {name!r}; see `consumerd topics list`, or make it with `consumerd "
                        f"topics create --topic {name}`."
                    )
            code = topic.error if topic.partitions else topic.error or ErrorCode.LEADER_NOT_AVAILABLE
            if (error := topic_error(code, f"the topic {name!r} cannot be used", name)) is not None:
                raise error
            found[name] = sorted(topic.partitions)
        return found

    return await client.retrying(f"find {', '.join(topics)}", ask)
