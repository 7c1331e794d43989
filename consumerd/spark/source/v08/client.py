"""A blocking interface to the asyncio client of 0.8+ brokers, for tasks and planners without an event loop.

Strategy: `consumerd.net.client` runs on a loop in a thread of its own, created with the first request and ended by
`close`. The caller waits for one request at a time; an interrupt of the caller cancels it. The loop is in that thread
and not in the caller's, because a caller may be inside a loop (a notebook), and because a generator may be closed
anywhere.

Leaders move and brokers restart, so retriable failures are retried until `timeout` seconds after the start of the
request. Then the last reason is the error, as one of `consumerd.spark.source.errors`.

Executors import this module: its own imports (`client`, `net`, `clock`, `wire`) need the standard library alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from consumerd.base.clock import SystemClock
from consumerd.base.errors import BrokerError, ConfigError
from consumerd.base.partition import LogId
from consumerd.net.client.channel import Channel
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.epochs import EpochEnd, epoch_ends
from consumerd.net.client.errors import (
    AuthenticationError,
    BrokerRefusedError,
    NoBrokerReachedError,
    RequestTooLargeError,
    error_of,
)
from consumerd.net.client.fetching import LAST_WITH_NAMES, fetch_partitions
from consumerd.net.client.offsets import list_offsets
from consumerd.net.client.opening import ChannelOpener
from consumerd.net.client.sasl import Plain, SaslAuthenticator, Scram
from consumerd.net.client.settings import ClientSettings
from consumerd.net.connect import connect
from consumerd.net.connection import ConnectionSettings
from consumerd.net.errors import (
    BadFrameError,
    ClientCertificateError,
    ConnectError,
    ConnectionClosedError,
    RequestTimeoutError,
    TlsError,
    UnexpectedTlsError,
)
from consumerd.net.tls import certificate_remedy, make_tls_context
from consumerd.spark.source.errors import (
    BrokerReadError,
    BrokerRejectedError,
    BrokerTimeoutError,
    BrokerUnavailableError,
    LogReplacedError,
    OffsetUnavailableError,
)
from consumerd.spark.source.option_values import Tls
from consumerd.wire.errors import WireError
from consumerd.wire.v08.apis import FETCH
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.errors import UnsupportedApiError
from consumerd.wire.v08.fetch_session import PartitionFetch
from consumerd.wire.v08.schema import NO_UUID
from consumerd.wire.v08.versions import BrokerRelease

if TYPE_CHECKING:
    from consumerd.base.ports import SaslMechanism
    from consumerd.net.client.sasl_oauth import TokenCache
    from consumerd.spark.source.option_values import BootstrapLocation, Login


Address = tuple[str, int]
#: Topic and number.
Partition = tuple[str, int]

log = logging.getLogger(__name__)

_T = TypeVar("_T")

#: The client id in the logs and quotas of brokers.
CLIENT_ID: Final = "consumerd-spark"
#: Seconds for which a broker may wait for the first byte.
_WAIT: Final = 0.5
#: Answers but those to FETCH are never larger.
_MOST_BYTES: Final = 128 << 20
#: Bytes that a FETCH response may have beside messages: aborted transactions.
_ROOM: Final = 32 << 20
#: The end of the readable records, where a response has none.
_UNKNOWN: Final = -1
#: Seconds between attempts, at most.
_LONGEST_PAUSE: Final = 1.0
_CERTIFICATE_OPTIONS: Final = ("kafka.ssl.certificate.location", "kafka.ssl.key.location")
#: How a broker says that it has another log than the one that a fetch names, or that it does not know that one yet.
_OTHER_LOG: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID})

#: What old brokers of this process's clusters were found to be. Those of 0.9 cost some seconds of silence, and a
#: worker of Spark's runs many tasks.
_old_brokers: dict[Address, tuple[BrokerRelease, float]] = {}


class TopicLeaders(NamedTuple):
    """A topic: partition -> address of its leader, None while it has none; `internal`: it is the brokers' own.

    `topic_id`: as Kafka's tools print it; None where brokers have none (before 2.8). `epochs`: partition -> epoch of
    the leader, -1 where brokers do not tell it (before 2.1).
    """

    leaders: Mapping[int, Address | None]
    internal: bool
    topic_id: str | None = None
    epochs: Mapping[int, int] = MappingProxyType({})


class FetchedRecords(NamedTuple):
    """The response of a broker. `reach`: where readable records end now; `aborted`: as `decode_records` takes it.

    `throttled`: it may have kept back what there is, because of a quota.
    """

    data: bytes
    reach: int
    aborted: tuple[tuple[int, int], ...]
    throttled: bool


class KafkaClient:
    """A client of one cluster that blocks. Close it, or use it as a context manager.

    `timeout`: seconds that brokers may take for anything. `leaders`: who led what when it was seen last. `largest`: the
    most bytes that a fetch may bring. Methods raise BrokerReadError when the time is up, at once where trying again
    would not help (BrokerRejectedError). Not for several threads at once.
    """

    def __init__(
        self,
        cluster: BootstrapLocation,
        timeout: float,
        *,
        leaders: Mapping[Partition, Address | None] | None = None,
        largest: int = 0,
    ) -> None:
        self._read_committed = cluster.read_committed
        self._user = None if cluster.login is None else cluster.login.user
        self._largest = largest + _ROOM
        connection = ConnectionSettings(
            connect_timeout=timeout, socket_timeout=timeout, max_frame_bytes=max(_MOST_BYTES, self._largest)
        )
        settings = ClientSettings(
            client_id=CLIENT_ID, connection=connection, retry_backoff_max=_LONGEST_PAUSE, retry_timeout=timeout
        )
        clock = SystemClock()
        tls = None if cluster.tls is None else _context(cluster.tls)
        login = None if cluster.login is None else SaslAuthenticator(_mechanism(cluster.login), timeout=timeout)
        certificate = None if cluster.tls is None else cluster.tls.certificate
        identity = certificate_remedy(certificate, *_CERTIFICATE_OPTIONS)
        connector = partial(connect, settings=connection, ssl=tls, identity=identity)
        opener = ChannelOpener(connector, settings, clock, authenticate=login, remembered=_old_brokers)
        self._client = ClusterClient(
            cluster.servers, opener, settings, clock=clock, rng=random.Random(), on_retry=_log_retry
        )
        #: Whom to ask without a look at the metadata, until that proves wrong.
        self._leaders = {each: leader for each, leader in (leaders or {}).items() if leader is not None}
        self._loop: _LoopThread | None = None
        #: Whether a fetch named its topic and not the id (brokers before 3.1), so that only metadata have the log's.
        self.fetches_by_name = False

    def topics(self, wants: Callable[[str], bool], names: Collection[str] | None = None) -> dict[str, TopicLeaders]:
        """The wanted topics that exist; `names`: the candidates. The request creates none."""

        async def ask(client: ClusterClient) -> dict[str, TopicLeaders]:
            metadata = await client.refresh(None if names is None else sorted(names), never_create=True)
            found: dict[str, TopicLeaders] = {}
            for name, topic in metadata.topics.items():
                if not wants(name) or topic.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue
                if error := error_of(topic.error, f"the brokers do not describe the topic {name}"):
                    raise error
                nodes = {number: metadata.leader(name, number) for number in topic.partitions}
                leaders = {number: node and (node.host, node.port) for number, node in nodes.items()}
                epochs = {number: part.leader_epoch for number, part in topic.partitions.items()}
                found[name] = TopicLeaders(leaders, topic.internal, _id_text(topic.id), epochs)
            return found

        return self.ask("find the topics", ask)

    def offsets(self, wanted: Collection[Partition], when: int) -> dict[Partition, int | None]:
        """Return each partition's first offset at `when` (ms since 1970, EARLIEST, LATEST) or later, or None.

        Brokers before 0.10.1 name the start of a segment, before which there may be nothing of that time either. LATEST
        is where consumers of the configured isolation level end.
        """
        return {each: offset for each, (offset, _) in self._listed(wanted, when).items()}

    def first_at(self, partition: Partition, when: int, start: int, end: int) -> int:
        """Return the offset in [`start`, `end`] from which all messages of `when` (ms since 1970) or later follow."""
        found, by_segment = self._listed([partition], when)[partition]
        if found is None:  # before 0.10.1: everything may be of that time; since: nothing is
            return start if by_segment else end
        return min(max(found, start), end)

    def fetch(self, partition: Partition, offset: int, size: int, topic_id: str | None = None) -> FetchedRecords:
        """Messages from `offset` on: about `size` bytes, at least one message or batch since 0.10.1, or nothing.

        `topic_id`: that of the topic when the read was planned. Raises OffsetUnavailableError, and LogReplacedError
        where a broker finds that the topic has another id now.
        """
        return self.ask(
            f"fetch {partition[0]}/{partition[1]} from {offset}",
            lambda _: self._fetch(partition, offset, size, topic_id),
        )

    def epoch_ends(self, wanted: Mapping[Partition, int]) -> dict[Partition, EpochEnd]:
        """Return where these leader epochs end in the logs of the partitions' leaders.

        Without the partitions of brokers that do not tell: those before 0.11, and those before 2.3 with ACLs.
        """
        found: dict[Partition, EpochEnd] = {}

        async def ask(client: ClusterClient) -> dict[Partition, EpochEnd]:
            for leader, partitions in await _by_leader(client, (each for each in wanted if each not in found)):
                channel = await client.node_channel(leader)
                topics = client.metadata.topics
                asked = [(*each, topics[each[0]].partitions[each[1]].leader_epoch, wanted[each]) for each in partitions]
                with self._watched(partitions):
                    try:
                        ends = await epoch_ends(channel, asked)
                    except UnsupportedApiError:
                        continue
                for each in partitions:
                    what = f"where a leader epoch of {each[0]}/{each[1]} ends"
                    if (end := ends.get(each)) is None:
                        raise BrokerReadError(f"broker {channel.address} did not say {what}")
                    if not end.withheld:
                        self._raise_for(end.error, f"broker {channel.address} refused to say {what}", each)
                        found[each] = end
            return found

        return self.ask("find where leader epochs end", ask)

    def must_have(self, topic: str, topic_id: str) -> None:
        """Raise LogReplacedError if the topic has another id by now."""
        self.ask(f"find the id of topic {topic}", lambda _: self._must_have(topic, topic_id))

    def ask(self, what: str, attempt: Callable[[ClusterClient], Awaitable[_T]]) -> _T:
        """The result of `attempt`, which runs on the loop and is repeated while it fails for a retriable reason.

        `what`: the question as a verb and its object, for errors and the log.
        """
        if self._loop is None:
            self._loop = _LoopThread()
        work = self._client.retrying(what, lambda: attempt(self._client), passes=_passes)
        try:
            return self._loop.run(work)
        except BrokerReadError:
            raise
        except (BrokerError, WireError) as error:
            reason = _reason(error)
            raise _kind(reason)(f"cannot {what}: {reason}{self._hint(reason)}") from error

    def _hint(self, reason: Exception) -> str:
        """The options that an error concerns."""
        if isinstance(reason, UnexpectedTlsError):
            return "; give kafka.security.protocol=SSL or SASL_SSL"
        if isinstance(reason, AuthenticationError) and self._user:
            return f" (kafka.sasl.username is {self._user})"
        return ""

    def close(self) -> None:
        """End all connections and the thread; more than once is fine. May be called from anywhere."""
        if (loop := self._loop) is not None:
            self._loop = None
            loop.end(self._client.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what runs on the loop

    def _listed(self, wanted: Collection[Partition], when: int) -> dict[Partition, tuple[int | None, bool]]:
        """Offsets as `offsets` has them, and whether they are starts of segments. Known ones are not requested."""
        found: dict[Partition, tuple[int | None, bool]] = {}

        async def ask(client: ClusterClient) -> dict[Partition, tuple[int | None, bool]]:
            for leader, partitions in await _by_leader(client, (each for each in wanted if each not in found)):
                channel = await client.node_channel(leader)
                with self._watched(partitions):
                    listed = await list_offsets(channel, partitions, when, read_committed=self._read_committed)
                for each in partitions:
                    name = f"{each[0]}/{each[1]}"
                    if (part := listed.get(each)) is None:
                        raise BrokerReadError(f"broker {channel.address} sent a response without the offsets of {name}")
                    self._raise_for(
                        part.error, f"broker {channel.address} rejected an offsets request for {name}", each
                    )
                    found[each] = next(iter(part.offsets), None), part.by_segment
            return found

        return self.ask("list the offsets of partitions", ask)

    async def _fetch(self, partition: Partition, offset: int, size: int, topic_id: str | None) -> FetchedRecords:
        topic, number = partition
        where = f"{topic}/{number} from {offset}"
        channel = await self._leader(partition)
        known = LogId.from_text(topic_id, None).topic_id or self._client.metadata.topic_id(topic)
        entry = PartitionFetch(topic, number, offset, size, topic_id=known)
        self.fetches_by_name = channel.versions.pick(FETCH) <= LAST_WITH_NAMES
        with self._watched([partition]):
            fetched = await fetch_partitions(
                channel,
                [entry],
                max_bytes=size,
                max_wait=_WAIT,
                min_bytes=1,
                read_committed=self._read_committed,
                max_response=self._largest,
            )
        part = fetched.partitions.get(partition)
        code = fetched.error or (part.error if part else 0)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise OffsetUnavailableError(f"broker {channel.address} does not have {where}: OFFSET_OUT_OF_RANGE")
        if code in _OTHER_LOG and topic_id is not None:
            await self._must_have(topic, topic_id)  # else the broker only does not know the topic yet
        self._raise_for(code, f"broker {channel.address} rejected a fetch of {where}", partition)
        if part is None and fetched.throttled:  # over a quota, brokers answer without partitions
            return FetchedRecords(b"", _UNKNOWN, (), throttled=True)
        if part is None:
            raise BrokerReadError(
                f"cannot fetch {where}: broker {channel.address} left the partition out of its response"
            )
        return FetchedRecords(bytes(part.data), part.readable_end, part.aborted, fetched.throttled)

    async def _must_have(self, topic: str, topic_id: str) -> None:
        metadata = await self._client.refresh([topic], never_create=True)
        if (found := _id_text(metadata.topic_id(topic))) not in (None, topic_id):
            raise LogReplacedError(
                f"topic {topic} had id {topic_id} when the read was planned and has {found} now, so it was deleted and "
                "created again"
            )

    async def _leader(self, partition: Partition) -> Channel:
        """The channel to the leader of a partition."""
        if (address := self._leaders.get(partition)) is not None:
            try:
                return await self._client.channel(*address)
            except BrokerError:
                del self._leaders[partition]
        return await self._client.node_channel((await self._client.leader(*partition)).id)

    @contextlib.contextmanager
    def _watched(self, partitions: Collection[Partition]) -> Iterator[None]:
        """A connection that ends meanwhile may be to a former leader."""
        try:
            yield
        except ConnectionClosedError:
            for partition in partitions:
                self._forget(partition)
            raise

    def _raise_for(self, code: int, what: str, partition: Partition) -> None:
        """Raise BrokerRefusedError for an error code; refresh leaders if it requires that."""
        if error := error_of(code, what):
            if error.info.refresh:
                self._forget(partition)
            raise error

    def _forget(self, partition: Partition) -> None:
        self._leaders.pop(partition, None)
        self._client.stale([partition[0]])


class _LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="kafka-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return the result of `work`; it is cancelled where the caller is interrupted."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def end(self, last: Coroutine[Any, Any, None]) -> None:
        """Run `last`, then end loop and thread. Waits for that, unless a garbage collection calls it on the thread."""
        asyncio.run_coroutine_threadsafe(self._finish(last), self._loop)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _serve(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _finish(self, last: Coroutine[Any, Any, None]) -> None:
        try:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            await last
        finally:
            self._loop.stop()


async def _by_leader(client: ClusterClient, wanted: Iterable[Partition]) -> Iterable[tuple[int, list[Partition]]]:
    """Partitions by the id of the broker that leads them."""
    found: dict[int, list[Partition]] = {}
    for each in wanted:
        found.setdefault((await client.leader(*each)).id, []).append(each)
    return found.items()


def _id_text(topic_id: bytes) -> str | None:
    """A topic's id as Kafka's tools print it; None for the id that stands for none."""
    return None if topic_id == NO_UUID else LogId(topic_id).topic_id_text


def _reason(error: BrokerError | WireError) -> BrokerError | WireError:
    """The error to raise: of several brokers the rejection, for which the others are not awaited."""
    if isinstance(error, NoBrokerReachedError):
        return next((each for each in error.tried if _kind(each) is BrokerRejectedError), error)
    return error


def _passes(error: BrokerError) -> bool:
    """Whether the error is retriable."""
    return not issubclass(_kind(_reason(error)), BrokerRejectedError | OffsetUnavailableError | LogReplacedError)


def _kind(error: BrokerError | WireError) -> type[BrokerReadError]:
    """The class of error of this room for an error of the client."""
    match error:
        case BrokerReadError():
            return type(error)
        case (
            AuthenticationError()
            | ClientCertificateError()
            | RequestTooLargeError()
            | UnexpectedTlsError()
            | UnsupportedApiError()
        ):
            return BrokerRejectedError
        case TlsError() if isinstance(error.__cause__, ssl.SSLCertVerificationError):
            return BrokerRejectedError  # else the broker may be going down
        case BrokerRefusedError():
            return BrokerReadError if error.retriable or error.info.refresh else BrokerRejectedError
        case RequestTimeoutError():
            return BrokerTimeoutError
        case BadFrameError():
            return BrokerReadError
        case ConnectError() | ConnectionClosedError() | NoBrokerReachedError():
            return BrokerUnavailableError
    return BrokerReadError


def _log_retry(what: str, error: BrokerError) -> None:
    log.info("retrying to %s: %s", what, error)


def _mechanism(login: Login) -> Callable[[], SaslMechanism]:
    password = login.password or ""
    if login.tokens is not None:
        from consumerd.net.client.sasl_oauth import OAuthBearer  # noqa: PLC0415 - for few reads

        return partial(OAuthBearer, _tokens(login), dict(login.tokens.extensions))
    if login.mechanism == "PLAIN":
        return partial(Plain, login.user, password)
    return partial(Scram, login.mechanism, login.user, password)


@lru_cache(maxsize=16)
def _tokens(login: Login) -> TokenCache:
    """The tokens of this process for a login: a worker runs many tasks. Raises BrokerRejectedError."""
    from consumerd.net.client import sasl_oauth  # noqa: PLC0415

    source = login.tokens
    assert source is not None
    if source.file is not None:
        return sasl_oauth.TokenCache(sasl_oauth.own_provider("file", partial(sasl_oauth.read_token_file, source.file)))
    tls = _context(Tls(source.ca), "kafka.sasl.oauthbearer.ca.location") if source.ca else make_tls_context()
    credentials = sasl_oauth.ClientCredentials(
        source.endpoint or "", login.user, lambda: login.password or "", scope=source.scope, tls=lambda: tls
    )
    return sasl_oauth.TokenCache(credentials)


def _context(tls: Tls, options: str = "kafka.ssl.*") -> ssl.SSLContext:
    """Raises BrokerRejectedError for files that cannot be used."""
    try:
        return make_tls_context(ca=tls.ca, certificate=tls.certificate, key=tls.key, check_hostname=tls.check_hostname)
    except ConfigError as error:
        raise BrokerRejectedError(
            f"{options} cannot be used: {error} The files must exist on every executor and on the driver."
        ) from error
