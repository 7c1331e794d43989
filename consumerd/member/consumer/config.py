"""The configuration of a `ConsumerConnector`: plain values, 0.7.2's defaults, and what is built from them.

Strategy: one configuration for all dialects. The coordination of the group decides what else is required: a ZooKeeper,
or brokers to begin with; what a dialect does not have is refused, as soon as that is known.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from consumerd.base.address import parse_addresses
from consumerd.base.defaults import default_of
from consumerd.base.errors import ConfigError
from consumerd.group import MembershipSettings
from consumerd.group.coordinated_tables import CoordinationSettings, all_assignors
from consumerd.member.consumer.settings import ConsumerSettings, make_connection_settings, make_fetch_settings
from consumerd.member.fetch import BadMessagePolicy, FetchSettings, LogChangePolicy, ResetPolicy
from consumerd.member.fetch.settings import LONGEST_WAIT, SHORTEST_WAIT
from consumerd.member.offsets import OffsetSettings
from consumerd.net import ConnectionSettings
from consumerd.net.client.settings import ClientSettings
from consumerd.net.zk import Session
from consumerd.wire.registry import RegistryError, check_name, configured_consumer_id, make_consumer_id

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence
    from random import Random

    from consumerd.base.ports import Clock, SaslMechanism
    from consumerd.wire.registry import Subscription


_CHOICES: dict[str, tuple[str | None, ...]] = {
    "initial": ("earliest", "latest"),
    "out_of_range": tuple(ResetPolicy),
    "log_changed": tuple(LogChangePolicy),
    "corrupt": tuple(BadMessagePolicy),
    "oversize": tuple(BadMessagePolicy),
    "coordination": ("zookeeper", "kafka", None),
    "dialect": ("auto", "0.7", "0.8"),
    "offsets": ("zookeeper", "kafka", "both", None),
    "assignor": ("range", "roundrobin"),
    "isolation": ("read_uncommitted", "read_committed"),
}
#: Settings that are sizes, and those that are times; None is a value of some.
_SIZES = ("fetch_size", "max_fetch_size", "min_bytes", "budget", "partition_budget")
_TIMES = (
    *("commit_interval", "idle_backoff", "max_wait", "socket_timeout", "connect_timeout", "listener_timeout"),
    *("stop_timeout", "session_timeout", "connection_timeout"),
    *("group_session_timeout", "heartbeat_interval", "rebalance_timeout"),
)
_MAY_BE_ZERO = ("drain_timeout", "consumer_timeout")
#: The values that a member of 0.7 accepts for settings that it does not have.
_ONLY_V07: dict[str, tuple[str | None, ...]] = {
    "offsets": ("zookeeper", None),
    "assignor": ("range",),
    "isolation": ("read_uncommitted",),
    "metadata": ("",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """The settings of a connector. Times in seconds, sizes in bytes; in brackets the key of Kafka.

    Raises ConfigError for values that cannot be meant.
    """

    #: Name of the consumer group (groupid).
    group: str
    #: Hosts and, after them, the chroot: `zk1:2181,zk2:2181/kafka` (zk.connect).
    zookeeper: str = "127.0.0.1:2181"
    #: The part of the member's id after `group_`; by default host name, time and random digits (consumerid).
    consumer_id: str | None = None
    #: Start of a partition without a committed offset (autooffset.reset).
    initial: Literal["earliest", "latest"] = default_of(ConsumerSettings, "initial")
    #: Position from which to continue when the broker does not have the offset (autooffset.reset).
    out_of_range: Literal["earliest", "latest", "nearest", "fail"] = default_of(FetchSettings, "on_out_of_range").value
    #: When the log is another one than the offset was read from: read what is new of it, stop, or park the partition.
    log_changed: Literal["continue", "stop", "park"] = default_of(FetchSettings, "on_log_changed").value
    #: A message that is corrupt, or larger than `max_fetch_size`: stop, continue after it, or park its partition.
    corrupt: Literal["fail", "skip", "park"] = default_of(FetchSettings, "on_corrupt").value
    oversize: Literal["fail", "skip", "park"] = default_of(FetchSettings, "on_oversize").value
    #: Commit what is handled on an interval and when a partition goes (autocommit.enable, autocommit.interval.ms).
    auto_commit: bool = default_of(ConsumerSettings, "auto_commit")
    commit_interval: float = default_of(ConsumerSettings, "commit_interval")
    #: Longest wait of an iteration for a message before ConsumerTimeoutError; None: no limit (consumer.timeout.ms).
    consumer_timeout: float | None = None
    #: Size of one fetch (fetch.size), and the limit up to which it grows for a larger message.
    fetch_size: int = default_of(FetchSettings, "fetch_bytes")
    max_fetch_size: int = default_of(FetchSettings, "max_fetch_bytes")
    #: On brokers of 0.7: longest pause between polls of idle partitions (fetcher.backoff.ms).
    idle_backoff: float = default_of(FetchSettings, "poll_backoff_max")
    #: Memory for messages, of all partitions and of one.
    budget: int = default_of(ConsumerSettings, "budget")
    partition_budget: int = default_of(ConsumerSettings, "partition_budget")
    #: Longest wait for a broker's response (socket.timeout.ms), and for a connection.
    socket_timeout: float = default_of(ConnectionSettings, "request_timeout")
    connect_timeout: float = default_of(ConnectionSettings, "connect_timeout")
    #: Limit for handlers to finish batches of revoked partitions. JVM peers give up about 8 s after the trigger.
    drain_timeout: float = default_of(MembershipSettings, "drain_timeout")
    #: Limit for one call of a rebalance listener; peers wait meanwhile.
    listener_timeout: float = default_of(ConsumerSettings, "listener_timeout")
    #: Limit for `shutdown` in all; a batch that is not finished then is cancelled and delivered again.
    stop_timeout: float = 20.0
    #: The ZooKeeper session (zk.sessiontimeout.ms, zk.connectiontimeout.ms).
    session_timeout: float = default_of(Session, "session_timeout")
    connection_timeout: float = 6.0
    #: Credentials such as `("digest", "user:password")`, a SASL mechanism such as
    #: `lambda: consumerd.DigestMd5(user, password)`, TLS, and the access to nodes that we create.
    auth: Sequence[tuple[str, str | bytes]] = field(default=(), repr=False)
    zookeeper_sasl: Callable[[], SaslMechanism] | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    acl: str | Sequence[str] = default_of(Session, "acl")

    # The settings below are for brokers of Kafka 0.8 and later.

    #: Bootstrap brokers, ("host:port", ...); groups in ZooKeeper find them there if none is given.
    bootstrap: Sequence[str] = ()
    #: Coordination of the group: by the members through ZooKeeper (0.7, and old consumers of 0.8.2 to 1.1), or by a
    #: broker (0.9 and later). None: a broker if `bootstrap` is given.
    coordination: Literal["zookeeper", "kafka"] | None = None
    #: Dialect of a group in ZooKeeper; auto: that of the registered brokers and members, waiting for the first one.
    dialect: Literal["auto", "0.7", "0.8"] = "auto"
    #: Offset store. None: ZooKeeper or Kafka, whichever coordinates the group.
    offsets: Literal["zookeeper", "kafka", "both"] | None = None
    #: A text that is kept with each offset in Kafka.
    metadata: str = default_of(OffsetSettings, "metadata")
    #: Assignment strategy (partition.assignment.strategy).
    assignor: Literal["range", "roundrobin"] = "range"
    #: Settings of a member that a broker coordinates: group.instance.id, session.timeout.ms, heartbeat.interval.ms, and
    #: the time for which a rebalance waits for it.
    instance_id: str | None = None
    group_session_timeout: float = default_of(CoordinationSettings, "session_timeout")
    heartbeat_interval: float = default_of(CoordinationSettings, "heartbeat_interval")
    rebalance_timeout: float = default_of(CoordinationSettings, "rebalance_timeout")
    #: read_committed leaves out messages of aborted and open transactions (isolation.level).
    isolation: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    #: Longest time that brokers delay a response (fetch.max.wait.ms), to gather this many bytes (fetch.min.bytes).
    max_wait: float = default_of(FetchSettings, "max_wait")
    min_bytes: int = default_of(FetchSettings, "min_bytes")
    #: The client's identity at the brokers: a name for their logs and quotas, TLS, and the authenticator, such as
    #: `lambda: consumerd.Scram("SCRAM-SHA-512", user, password)`.
    client_id: str = default_of(ClientSettings, "client_id")
    broker_tls: ssl.SSLContext | None = None
    sasl: Callable[[], SaslMechanism] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        try:
            check_name("group", self.group)
        except RegistryError as error:
            raise ConfigError(f"{error}.") from error
        for name, there in _CHOICES.items():
            if getattr(self, name) not in there:
                words = ", ".join(each for each in there if each is not None)
                raise ConfigError(f"{name} must be one of {words}, not {getattr(self, name)!r}.")
        for name in (*_SIZES, *_TIMES, *_MAY_BE_ZERO):
            self._check_number(name)
        if self.fetch_size >= 1 << 31 or self.max_fetch_size >= 1 << 31:
            raise ConfigError("fetch_size and max_fetch_size must be below 2 GiB: the protocol has 32 bits for them.")
        if not SHORTEST_WAIT <= self.max_wait <= LONGEST_WAIT:
            raise ConfigError(f"max_wait must be from {SHORTEST_WAIT:g} to {LONGEST_WAIT:g} s, not {self.max_wait!r}.")
        most = min(self.fetch_size, default_of(FetchSettings, "max_answer_bytes"))
        if self.min_bytes > most:
            raise ConfigError(f"min_bytes must be at most {most}, which one fetch can return, not {self.min_bytes}.")
        parse_addresses(self.bootstrap, "bootstrap")
        self._check_coordination()

    def _check_number(self, name: str) -> None:
        value, kind = getattr(self, name), int if name in _SIZES else int | float
        if value is None and name == "consumer_timeout":
            return
        is_number = isinstance(value, kind) and not isinstance(value, bool)
        if not is_number or not (value >= 0 if name in _MAY_BE_ZERO else value > 0):
            rule = "0 or a positive number" if name in _MAY_BE_ZERO else "a positive number"
            of = "bytes" if name in _SIZES else "seconds"
            raise ConfigError(f"{name} must be {rule} of {of}, not {value!r}.")

    def _check_coordination(self) -> None:
        if self.by_zookeeper:
            if self.instance_id is not None:
                raise ConfigError("instance_id requires a group that a broker coordinates: set bootstrap.")
            if self.dialect == "0.7":
                self.require_v07()
            return
        if not self.bootstrap:
            raise ConfigError('coordination = "kafka" requires bootstrap: a list of brokers, such as ["kafka1:9092"].')
        if self.dialect != "auto":
            raise ConfigError("dialect applies only to groups that ZooKeeper coordinates: remove it.")
        if self.offsets == "zookeeper":
            raise ConfigError(
                'offsets = "zookeeper" is not supported in a group that a broker coordinates: only the broker knows '
                'the owner of a partition; use "both" to keep a copy in ZooKeeper.'
            )
        self.coordination_settings()

    @property
    def by_zookeeper(self) -> bool:
        """Whether the group is coordinated in ZooKeeper."""
        return self.coordination == "zookeeper" or (self.coordination is None and not self.bootstrap)

    def require_v07(self) -> None:
        """Raise ConfigError for what brokers and members of 0.7 do not have."""
        for name, there in _ONLY_V07.items():
            if getattr(self, name) not in there:
                raise ConfigError(f"{name} = {getattr(self, name)!r} is not supported by Kafka 0.7: remove it.")

    def offset_settings(self) -> OffsetSettings:
        """Return the settings of the offset store, with the default resolved."""
        return OffsetSettings(self.offsets or ("zookeeper" if self.by_zookeeper else "kafka"), self.metadata)

    def coordination_settings(self) -> CoordinationSettings:
        """Return the settings of a membership that a broker coordinates. Raises ConfigError."""
        if self.group_session_timeout < 2 * self.heartbeat_interval:
            raise ConfigError("group_session_timeout must be at least twice heartbeat_interval.")
        if self.rebalance_timeout < self.group_session_timeout:
            raise ConfigError("rebalance_timeout must be at least group_session_timeout.")
        return CoordinationSettings(
            session_timeout=self.group_session_timeout,
            heartbeat_interval=self.heartbeat_interval,
            rebalance_timeout=self.rebalance_timeout,
            drain_timeout=self.drain_timeout,
            assignors=all_assignors(self.assignor),
            instance_id=self.instance_id,
        )

    def session(self, *, clock: Clock, rng: Random) -> Session:
        """Return the ZooKeeper session, not started. Raises ConfigError."""
        return Session(
            self.zookeeper,
            clock=clock,
            rng=rng,
            session_timeout=self.session_timeout,
            ssl=self.tls,
            auth=self.auth,
            sasl=self.zookeeper_sasl,
            acl=self.acl,
        )

    def connection_settings(self) -> ConnectionSettings:
        """Return the settings of connections to brokers."""
        return make_connection_settings(
            connect_timeout=self.connect_timeout, socket_timeout=self.socket_timeout, max_size=self.max_fetch_size
        )

    def settings(self, subscription: Subscription, *, clock: Clock, rng: Random) -> ConsumerSettings:
        """Return the settings of a member with this subscription, its id included. Raises ConfigError."""
        try:
            consumer_id = (
                make_consumer_id(self.group, socket.gethostname(), int(clock.wall() * 1000), rng.getrandbits(64))
                if self.consumer_id is None
                else configured_consumer_id(self.group, self.consumer_id)
            )
        except RegistryError as error:
            raise ConfigError(f"{error}.") from error
        return ConsumerSettings(
            group=self.group,
            consumer_id=consumer_id,
            fixed_id=self.consumer_id is not None,
            subscription=subscription,
            membership=MembershipSettings(drain_timeout=self.drain_timeout),
            fetch=self._fetch_settings(),
            initial=self.initial,
            commit_interval=self.commit_interval,
            auto_commit=self.auto_commit,
            listener_timeout=self.listener_timeout,
            budget=self.budget,
            partition_budget=min(self.partition_budget, self.budget),
        )

    def _fetch_settings(self) -> FetchSettings:
        return make_fetch_settings(self, size=self.fetch_size, max_size=self.max_fetch_size)
