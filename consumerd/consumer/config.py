"""The configuration of a `ConsumerConnector`: plain values, 0.7.2's defaults, and what is built from them."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from consumerd.consumer.settings import ConsumerSettings
from consumerd.errors import ConfigError
from consumerd.fetch import BadMessagePolicy, FetchSettings, ResetPolicy
from consumerd.group import MembershipSettings
from consumerd.net import ConnectionSettings
from consumerd.registry import RegistryError, check_name, configured_consumer_id, make_consumer_id
from consumerd.zk import Session

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from random import Random

    from consumerd.ports import Clock
    from consumerd.registry import Subscription

_FETCH = FetchSettings()
_CONNECTION = ConnectionSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How a connector joins and consumes. Times in seconds, sizes in bytes; in brackets the key of 0.7.2.

    Raises ConfigError for values that cannot be meant.
    """

    #: Name of the consumer group (groupid).
    group: str
    #: Hosts and, after them, the chroot: `zk1:2181,zk2:2181/kafka` (zk.connect).
    zookeeper: str = "127.0.0.1:2181"
    #: What stands after `group_` in the member's id; by default host name, time and random digits (consumerid).
    consumer_id: str | None = None
    #: Where a partition without a committed offset starts (autooffset.reset).
    initial: Literal["earliest", "latest"] = "earliest"
    #: Where to go on when the broker no longer has the offset (autooffset.reset).
    out_of_range: Literal["earliest", "latest", "fail"] = "earliest"
    #: A message that is corrupt, or larger than `max_fetch_size`: stop, go on behind it, or leave its partition alone.
    corrupt: Literal["fail", "skip", "park"] = "fail"
    oversize: Literal["fail", "skip", "park"] = "fail"
    #: Commit what is handled on an interval and when a partition goes (autocommit.enable, autocommit.interval.ms).
    auto_commit: bool = True
    commit_interval: float = 10.0
    #: How long an iteration waits for a message before ConsumerTimeoutError; None waits for ever (consumer.timeout.ms).
    consumer_timeout: float | None = None
    #: Asked for in one fetch (fetch.size), and up to what it grows for a larger message.
    fetch_size: int = 1 << 20
    max_fetch_size: int = 64 << 20
    #: Longest pause between polls of idle partitions (fetcher.backoff.ms).
    idle_backoff: float = 1.0
    #: Memory for messages, of all partitions and of one.
    budget: int = 128 << 20
    partition_budget: int = 16 << 20
    #: To wait for an answer of a broker (socket.timeout.ms), and for a connection.
    socket_timeout: float = 30.0
    connect_timeout: float = 5.0
    #: In which what is in hand of partitions that move must be ended. JVM peers give up about 8 s after the trigger.
    drain_timeout: float = 4.0
    #: For one call of a rebalance listener; peers wait meanwhile.
    listener_timeout: float = 1.0
    #: For `shutdown` in all; what is not ended then is cancelled and delivered again.
    stop_timeout: float = 20.0
    #: The ZooKeeper session (zk.sessiontimeout.ms, zk.connectiontimeout.ms).
    session_timeout: float = 6.0
    connection_timeout: float = 6.0
    #: Credentials such as `("digest", "user:password")`, TLS, and the access to nodes that we create.
    auth: Sequence[tuple[str, str | bytes]] = field(default=(), repr=False)
    tls: ssl.SSLContext | None = None
    acl: str | Sequence[str] = "open"

    def __post_init__(self) -> None:
        try:
            check_name("group", self.group)
            self._fetch_settings()
        except (RegistryError, ValueError) as error:
            raise ConfigError(f"{error}.") from error
        for name in ("commit_interval", "listener_timeout", "stop_timeout", "budget", "partition_budget"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, and is {getattr(self, name)}.")
        if self.drain_timeout < 0 or (self.consumer_timeout or 0) < 0:
            raise ConfigError("drain_timeout and consumer_timeout must not be negative.")
        if self.initial not in ("earliest", "latest"):
            raise ConfigError(f"initial must be earliest or latest, and is {self.initial!r}.")

    def session(self, *, clock: Clock, rng: Random) -> Session:
        """The ZooKeeper session, not started. Raises ConfigError."""
        return Session(
            self.zookeeper,
            clock=clock,
            rng=rng,
            session_timeout=self.session_timeout,
            ssl=self.tls,
            auth=self.auth,
            acl=self.acl,
        )

    def connection_settings(self) -> ConnectionSettings:
        """How connections to brokers are made."""
        return ConnectionSettings(
            connect_timeout=self.connect_timeout,
            request_timeout=self.socket_timeout,
            max_frame_bytes=max(_CONNECTION.max_frame_bytes, self.max_fetch_size + (1 << 20)),
        )

    def settings(self, subscription: Subscription, *, clock: Clock, rng: Random) -> ConsumerSettings:
        """The settings of a member with this subscription, its id included. Raises ConfigError."""
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
        return FetchSettings(
            fetch_bytes=self.fetch_size,
            poll_bytes=min(self.fetch_size, _FETCH.poll_bytes),
            max_fetch_bytes=max(self.fetch_size, self.max_fetch_size),
            poll_backoff_max=self.idle_backoff,
            poll_backoff_min=min(self.idle_backoff, _FETCH.poll_backoff_min),
            on_oversize=BadMessagePolicy(self.oversize),
            on_corrupt=BadMessagePolicy(self.corrupt),
            on_out_of_range=ResetPolicy(self.out_of_range),
        )
