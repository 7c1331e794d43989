"""From the configuration to the parts: the one place that knows both the config's keys and the rooms' settings."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

from consumerd.consumer import ConsumerSettings
from consumerd.consumer.settings import make_connection_settings, make_fetch_settings
from consumerd.errors import ConfigError
from consumerd.group import MembershipSettings
from consumerd.handlers import FileDeadLetters, RetryPolicy, load_handler, retrying
from consumerd.offsets import OffsetSettings
from consumerd.registry import (
    FilterKind,
    FilterSubscription,
    RegistryError,
    StaticSubscription,
    Subscription,
    TopicFilter,
    check_name,
    configured_consumer_id,
    make_consumer_id,
)
from consumerd.wire.errors import InvalidTopicError
from consumerd.wire.v07 import validate_topic
from consumerd.zk import Session

if TYPE_CHECKING:
    from random import Random

    from consumerd.config.group import GroupSection
    from consumerd.config.model import Config
    from consumerd.config.servers import TlsSection, ZooKeeperSection
    from consumerd.handlers import Handler
    from consumerd.net import ConnectionSettings
    from consumerd.ports import Clock


def build_session(
    section: ZooKeeperSection, *, clock: Clock, rng: Random, wait_connected: float | None = None
) -> Session:
    """The ZooKeeper session, not started; calls wait `wait_connected` seconds for a connection. Raises ConfigError."""
    auth = []
    for number, credential in enumerate(section.auth, 1):
        scheme, colon, secret = credential.get_secret_value().partition(":")
        if not (scheme and colon and secret):
            raise ConfigError(f"zookeeper.auth: credential {number} is not of the form digest:user:password.")
        auth.append((scheme, secret))
    return Session(
        section.connect,
        clock=clock,
        rng=rng,
        session_timeout=section.session_timeout,
        wait_connected=wait_connected,
        ssl=None if section.tls is None else build_tls(section.tls),
        auth=auth,
        acl=section.acl if section.acl in ("open", "creator-all") else section.acl.split(","),
    )


def build_tls(section: TlsSection, table: str = "zookeeper.tls") -> ssl.SSLContext:
    """A client context. Raises ConfigError for files that cannot be used; `table` is where they are named."""
    if section.key is not None and section.certificate is None:
        raise ConfigError(f"{table}.key needs {table}.certificate: give both.")
    what = f"ca: {section.ca}"
    try:
        context = ssl.create_default_context(cafile=section.ca)
        context.check_hostname = section.check_hostname
        if section.certificate is not None:
            files = [str(file) for file in (section.certificate, section.key) if file is not None]
            what = f"certificate: {' with the key '.join(files)}"
            context.load_cert_chain(section.certificate, section.key, password=_refuse_to_unlock)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror if error.strerror and not isinstance(error, ssl.SSLError) else error
        raise ConfigError(f"{table}.{what}: {reason}.") from error
    return context


def _refuse_to_unlock() -> str:
    """OpenSSL would ask at the terminal, and a service would wait for ever."""
    raise PermissionError(0, "the key is locked with a password, and nobody is there to ask; give one that is not")


def build_subscription(section: GroupSection) -> Subscription:
    """What the group section asks for. Raises ConfigError."""
    try:
        if section.partitions:
            for topic in section.partitions:
                validate_topic(topic)
            return StaticSubscription(dict.fromkeys(section.partitions, 1))
        if section.topics:
            for topic in section.topics:
                validate_topic(topic)
            return StaticSubscription(section.topics)
        if section.whitelist is not None:
            return FilterSubscription(TopicFilter(FilterKind.WHITELIST, section.whitelist), section.streams)
        assert section.blacklist is not None  # the model allows no fourth way
        return FilterSubscription(TopicFilter(FilterKind.BLACKLIST, section.blacklist), section.streams)
    except (RegistryError, InvalidTopicError) as error:
        raise ConfigError(f"group: {error}") from error


def build_settings(config: Config, *, clock: Clock, rng: Random) -> ConsumerSettings:
    """The member's settings, its id included. Raises ConfigError."""
    group, fetch, rebalance = config.group, config.fetch, config.rebalance
    fixed = group.consumer_id is not None
    try:
        check_name("group", group.id)
        consumer_id = (
            configured_consumer_id(group.id, group.consumer_id)
            if group.consumer_id is not None
            else make_consumer_id(group.id, socket.gethostname(), int(clock.wall() * 1000), rng.getrandbits(64))
        )
        return ConsumerSettings(
            group=group.id,
            consumer_id=consumer_id,
            fixed_id=fixed,
            subscription=build_subscription(group),
            membership=MembershipSettings(
                drain_timeout=rebalance.drain_timeout,
                retry_interval=rebalance.retry_interval,
                reconcile_interval=rebalance.reconcile_interval,
            ),
            fetch=make_fetch_settings(
                size=fetch.size,
                max_size=fetch.max_size,
                idle_backoff=fetch.idle_backoff,
                out_of_range=fetch.out_of_range,
                corrupt=fetch.corrupt,
                oversize=fetch.oversize,
                max_wait=fetch.max_wait,
                min_bytes=fetch.min_bytes,
                isolation=fetch.isolation,
            ),
            initial=fetch.initial,
            commit_interval=config.commit.interval,
            budget=fetch.budget,
            partition_budget=min(fetch.partition_budget, fetch.budget),
        )
    except (ValueError, RegistryError) as error:
        raise ConfigError(str(error)) from error


def build_offset_settings(config: Config) -> OffsetSettings:
    """Where offsets are kept, and what is kept with them."""
    commit = config.commit
    return OffsetSettings(config.group.storage, commit.metadata, commit.retention, commit.version)


def build_connection_settings(config: Config) -> ConnectionSettings:
    """How connections to brokers are made."""
    fetch = config.fetch
    return make_connection_settings(
        connect_timeout=fetch.connect_timeout, socket_timeout=fetch.socket_timeout, max_size=fetch.max_size
    )


def build_handler(config: Config, *, clock: Clock, rng: Random) -> Handler:
    """The handler, loaded and wrapped in its retry policy, not started. Raises HandlerLoadError, ConfigError."""
    section = config.handler
    policy = RetryPolicy(
        max_attempts=section.max_attempts,
        initial_backoff=section.initial_backoff,
        max_backoff=section.max_backoff,
        on_failure=section.on_failure,
        timeout=section.timeout,
    )
    letters = None
    if section.dead_letter is not None:
        letters = FileDeadLetters(section.dead_letter, clock=clock, max_size=section.dead_letter_max_size)
        letters.check()
    handler = load_handler(section.name, section.options)
    return retrying(handler, policy, clock=clock, rng=rng, name=section.name, dead_letters=letters)
