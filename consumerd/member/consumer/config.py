"""The configuration of a `ConsumerConnector`: plain values, 0.7.2's defaults, and what is built from them.

Strategy: one configuration for all dialects. The coordination of the group decides what else is required: a ZooKeeper,
or brokers to begin with; what a dialect does not have is refused, as soon as that is known.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Literal, TypeVar

from consumerd.base.address import parse_addresses
from consumerd.base.errors import ConfigError
from consumerd.base.ports import Clock, SaslMechanism
from consumerd.base.settings.group import CommitSection, GroupSection, RebalanceSection
from consumerd.base.settings.kind import ValueKind, kind_of
from consumerd.base.settings.processing import (
    BadMessagePolicy,
    DaemonSection,
    FetchSection,
    LogChangePolicy,
    OutOfRangePolicy,
)
from consumerd.base.settings.servers import KafkaSection, ZooKeeperSection
from consumerd.base.settings.setting import BrokenRulesError, Seconds, SecondsOrZero, Section
from consumerd.group.coordinated_tables import CoordinationSettings
from consumerd.group.membership_tables import MembershipSettings
from consumerd.member.consumer.settings import (
    LISTENER_TIMEOUT,
    ConsumerSettings,
    make_connection_settings,
    member_id,
)
from consumerd.member.fetch.settings import FetchSettings
from consumerd.member.offsets.choice import OffsetSettings
from consumerd.net.connection import ConnectionSettings
from consumerd.net.zk.session import Session
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.paths import check_name
from consumerd.wire.registry.subscription import (
    StaticSubscription,
    Subscription,
    is_subscribed,
    unconsumed_start,
)

_Table = TypeVar("_Table", bound=Section)

#: The values that each keyword may have: those of its key in the configuration, or its own.
_KINDS: Final[dict[str, ValueKind]] = {
    setting.names.keyword: kinds[name]
    for table in (GroupSection, RebalanceSection, CommitSection, FetchSection, DaemonSection, ZooKeeperSection)
    for kinds in [table.kinds()]
    for name, setting in table.fields.items()
    if setting.names.keyword is not None
} | {
    "auto_commit": kind_of(bool),
    "consumer_timeout": kind_of(SecondsOrZero | None),
    "listener_timeout": kind_of(Seconds),
    "connection_timeout": kind_of(Seconds),
    "coordination": kind_of(Literal["zookeeper", "kafka"] | None),
    "offsets": kind_of(Literal["zookeeper", "kafka", "both"] | None),
}
#: The values that a member of 0.7 accepts for settings that it does not have.
_ONLY_V07: dict[str, tuple[str | None, ...]] = {
    "offsets": ("zookeeper", None),
    "assignor": ("range",),
    "isolation": ("read_uncommitted",),
    "metadata": ("",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """The settings of a connector. Times in seconds, sizes in bytes.

    A keyword with the default of a key, such as `FetchSection.size`, means what that key of the configuration means.
    Raises ConfigError for values that are not allowed.
    """

    group: str
    zookeeper: str = ZooKeeperSection.connect
    consumer_id: str | None = None
    #: Where to start without a committed offset: "earliest", "latest", a time in ISO 8601 or a duration such as "7d".
    initial: str = FetchSection.initial
    initial_by_topic: Mapping[str, str] | None = None
    out_of_range: OutOfRangePolicy = FetchSection.out_of_range
    log_changed: LogChangePolicy = FetchSection.log_changed
    corrupt: BadMessagePolicy = FetchSection.corrupt
    oversize: BadMessagePolicy = FetchSection.oversize
    #: Commit what is handled on an interval and when a partition goes (autocommit.enable, autocommit.interval.ms).
    auto_commit: bool = True
    commit_interval: float = CommitSection.interval
    #: Longest wait of an iteration for a message before ConsumerTimeoutError; None: no limit (consumer.timeout.ms).
    consumer_timeout: float | None = None
    fetch_size: int = FetchSection.size
    max_fetch_size: int = FetchSection.max_size
    idle_backoff: float = FetchSection.idle_backoff
    budget: int = FetchSection.budget
    partition_budget: int = FetchSection.partition_budget
    socket_timeout: float = FetchSection.socket_timeout
    connect_timeout: float = FetchSection.connect_timeout
    drain_timeout: float = RebalanceSection.drain_timeout
    #: Limit for one call of a rebalance listener; peers wait meanwhile.
    listener_timeout: float = LISTENER_TIMEOUT
    #: Limit for `shutdown` in all; a batch that is not finished then is cancelled and delivered again.
    stop_timeout: float = DaemonSection.stop_timeout
    session_timeout: float = ZooKeeperSection.session_timeout
    #: Longest wait for the first connection to ZooKeeper or a broker (zk.connectiontimeout.ms).
    connection_timeout: float = 6.0
    #: Credentials such as `("digest", "user:password")`, a SASL mechanism such as
    #: `lambda: consumerd.DigestMd5(user, password)`, TLS, and the access to nodes that we create.
    auth: Sequence[tuple[str, str | bytes]] = field(default=(), repr=False)
    zookeeper_sasl: Callable[[], SaslMechanism] | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    acl: str | Sequence[str] = ZooKeeperSection.acl

    # The settings below are for brokers of Kafka 0.8 and later.

    #: Bootstrap brokers, ("host:port", ...); groups in ZooKeeper find them there if none is given.
    bootstrap: Sequence[str] = ()
    #: Coordination of the group: by the members through ZooKeeper (0.7, and old consumers of 0.8.2 to 1.1), or by a
    #: broker (0.9 and later). None: a broker if `bootstrap` is given.
    coordination: Literal["zookeeper", "kafka"] | None = None
    dialect: Literal["auto", "0.7", "0.8"] = GroupSection.dialect
    #: Offset store. None: ZooKeeper or Kafka, whichever coordinates the group.
    offsets: Literal["zookeeper", "kafka", "both"] | None = None
    metadata: str = CommitSection.metadata
    assignor: Literal["range", "roundrobin"] = GroupSection.assignor
    protocol: Literal["classic", "consumer"] = GroupSection.protocol
    remote_assignor: str | None = None
    broker_filter: bool = GroupSection.broker_filter
    instance_id: str | None = None
    group_session_timeout: float = GroupSection.session_timeout
    heartbeat_interval: float = GroupSection.heartbeat_interval
    rebalance_timeout: float = GroupSection.rebalance_timeout
    isolation: Literal["read_uncommitted", "read_committed"] = FetchSection.isolation
    max_wait: float = FetchSection.max_wait
    min_bytes: int = FetchSection.min_bytes
    #: The client's identity at the brokers: a name for their logs and quotas, its rack, TLS, and the authenticator, as
    #: `lambda: consumerd.Scram("SCRAM-SHA-512", user, password)`.
    client_id: str = KafkaSection.client_id
    rack: str = KafkaSection.rack
    broker_tls: ssl.SSLContext | None = None
    sasl: Callable[[], SaslMechanism] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        try:
            check_name("group", self.group)
        except RegistryError as error:
            raise ConfigError(f"{error}.") from error
        for keyword, kind in _KINDS.items():
            if problem := kind.problem(keyword, getattr(self, keyword)):
                raise ConfigError(f"{problem}.")
        parse_addresses(self.bootstrap, "bootstrap")
        if not self.by_zookeeper and not self.bootstrap:
            raise ConfigError('coordination = "kafka" requires bootstrap: a list of brokers, such as ["kafka1:9092"].')
        if self.dialect == "0.7":
            self.require_v07()
        self.offset_settings()
        self.coordination_settings()
        self._table(FetchSettings)

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
        """Return the settings of the offset store, with the default resolved. Raises ConfigError."""
        return self._table(OffsetSettings, storage=self._group().storage)

    def coordination_settings(self) -> CoordinationSettings:
        """Return the settings of a membership that a broker coordinates. Raises ConfigError."""
        return self._table(CoordinationSettings)

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
        return make_connection_settings(self._table(FetchSettings))

    def settings(self, subscription: Subscription, *, clock: Clock, rng: Random) -> ConsumerSettings:
        """Return the settings of a member with this subscription, its id included. Raises ConfigError."""
        for topic in self.initial_by_topic or ():
            if not is_subscribed(subscription, topic):
                named = subscription.streams if isinstance(subscription, StaticSubscription) else ()
                raise ConfigError(f"{unconsumed_start('initial_by_topic', topic, named)}.")
        return ConsumerSettings(
            group=self.group,
            consumer_id=member_id(self.group, self.consumer_id, clock=clock, rng=rng),
            fixed_id=self.consumer_id is not None,
            subscription=subscription,
            membership=self._table(MembershipSettings),
            fetch=self._table(FetchSettings),
            commit=self._table(CommitSection),
            auto_commit=self.auto_commit,
            listener_timeout=self.listener_timeout,
        )

    def _group(self) -> GroupSection:
        """The table of the group; its subscription, which is not known yet, is a pattern."""
        coordination = "zookeeper" if self.by_zookeeper else "kafka"
        return self._table(GroupSection, coordination=coordination, offsets=self.offsets, whitelist=".*")

    def _table(self, table: type[_Table], **values: Any) -> _Table:
        """The table that the keywords of its keys make. Raises ConfigError."""
        keywords = {name: setting.names.keyword for name, setting in table.fields.items() if setting.names.keyword}
        try:
            return table(**values, **{name: getattr(self, keyword) for name, keyword in keywords.items()})
        except BrokenRulesError as error:
            said = re.sub(r"[a-z_]+", lambda word: keywords.get(word[0], word[0]), str(error))
            raise ConfigError(f"{said}.") from error
