"""From the configuration to the parts: the one place that knows both the config's keys and the rooms' settings."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from consumerd.base.credentials import Renewed, find_file, secret_of, secrets_of
from consumerd.base.errors import ConfigError
from consumerd.base.ports import Clock, SaslMechanism
from consumerd.base.settings.group import GroupSection
from consumerd.base.settings.monitoring import HealthTlsSection
from consumerd.base.settings.processing import HandlerSection
from consumerd.base.settings.servers import LoginSection, TlsSection, ZooKeeperSaslSection, ZooKeeperSection
from consumerd.member.consumer.settings import ConsumerSettings, make_connection_settings, member_id
from consumerd.member.offsets.choice import OffsetSettings
from consumerd.net.connection import ConnectionSettings
from consumerd.net.tls import make_tls_context
from consumerd.service.config.model import Config
from consumerd.service.config.subscriptions import chosen_key
from consumerd.wire.errors import InvalidTopicError
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.subscription import FilterSubscription, StaticSubscription, Subscription
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter
from consumerd.wire.v07 import validate_topic

if TYPE_CHECKING:
    from consumerd.net.client.sasl_gssapi import GssapiIdentity
    from consumerd.net.zk.session import Session


def build_session(
    section: ZooKeeperSection, *, clock: Clock, rng: Random, wait_connected: float | None = None
) -> Session:
    """The ZooKeeper session, not started; calls wait `wait_connected` seconds for a connection. Raises ConfigError."""
    from consumerd.net.zk.acl import split_acl  # noqa: PLC0415 - a broker that coordinates needs none of ZooKeeper
    from consumerd.net.zk.session import Session  # noqa: PLC0415

    return Session(
        section.connect,
        clock=clock,
        rng=rng,
        session_timeout=section.session_timeout,
        wait_connected=wait_connected,
        ssl=None if section.tls is None else renewed_tls(section.tls, "zookeeper.tls"),
        auth=_zookeeper_auth(section),
        sasl=None if section.sasl is None else _zookeeper_mechanism(section.sasl),
        acl=split_acl(section.acl),
    )


async def open_session(
    stack: AsyncExitStack, section: ZooKeeperSection, clock: Clock, rng: Random, **how: Any
) -> Session:
    """A started session, closed with `stack`. `how`, and errors, as `consumerd.net.cluster.entry.start_session`."""
    from consumerd.net.cluster.entry import start_session  # noqa: PLC0415 - as above

    session = build_session(section, clock=clock, rng=rng)
    stack.push_async_callback(session.close)
    await start_session(session, section.connection_timeout, clock, **how)
    return session


def _zookeeper_auth(section: ZooKeeperSection) -> list[tuple[str, bytes]] | Renewed[list[tuple[str, bytes]]]:
    from consumerd.net.zk.session import check_credential  # noqa: PLC0415 - as above

    def read() -> list[tuple[str, bytes]]:
        auth = []
        for number, credential in enumerate(secrets_of(section, "auth", "zookeeper"), 1):
            scheme, colon, secret = credential.partition(":")
            if not (scheme and colon and secret):
                raise ConfigError(f"zookeeper.auth: credential {number} is not of the form digest:user:password.")
            auth.append(check_credential((scheme, secret)))
        return auth

    return read() if section.auth_file is None else Renewed("zookeeper.auth_file", [section.auth_file], read)


def _zookeeper_mechanism(section: ZooKeeperSaslSection) -> Callable[[], SaslMechanism]:
    if section.mechanism == "GSSAPI":
        return build_gssapi(section, "zookeeper.sasl")
    from consumerd.net.zk.sasl import DigestMd5  # noqa: PLC0415 - as above

    user, password = section.user or "", renewed_password(section, "zookeeper.sasl")

    def make() -> SaslMechanism:  # no partial, whose repr() has the password
        return DigestMd5(user, password())

    return make


def renewed_password(section: LoginSection, table: str) -> Callable[[], str]:
    """Return what reads the password, from its file as that is at the time. Raises ConfigError."""
    what = f"{table}.password_file"
    return Renewed(what, [section.password_file], lambda: secret_of(section, "password", table) or "").now


def build_gssapi(section: LoginSection, table: str) -> GssapiIdentity:
    """A factory of GSSAPI; `table` is where the keytab is named. Raises ConfigError, also for a missing extra."""
    keytab = None if section.keytab is None else find_file(section.keytab)
    if keytab is not None:
        try:
            keytab.open("rb").close()
        except OSError as error:
            raise ConfigError(f"{table}.keytab: {error}.") from error
    from consumerd.net.client.sasl_gssapi import GssapiIdentity  # noqa: PLC0415 - with the client of 0.8+ brokers

    return GssapiIdentity(service=section.service, principal=section.principal, keytab=keytab)


def renewed_tls(section: TlsSection, table: str) -> Renewed[ssl.SSLContext]:
    """A client context of the files as they are at the time. Raises ConfigError as `build_tls`."""
    files = (section.ca, section.certificate, section.key, section.key_password_file)
    return Renewed(table, files, lambda: build_tls(section, table))


def build_tls(section: TlsSection, table: str = "zookeeper.tls") -> ssl.SSLContext:
    """A client context. Raises ConfigError for files that cannot be used; `table` is where they are named."""
    if section.key is not None and section.certificate is None:
        raise ConfigError(f"{table}.key needs {table}.certificate: give both.")
    password = key_password(section, table)
    key = None if section.key is None else find_file(section.key)
    try:
        return make_tls_context(
            ca=section.ca,
            certificate=section.certificate,
            key=key,
            password=password,
            check_hostname=section.check_hostname,
        )
    except ConfigError as error:
        raise ConfigError(f"{table}.{error}") from error


def key_password(section: TlsSection | HealthTlsSection, table: str) -> Callable[[], str]:
    """Return the password callback for OpenSSL, which would otherwise prompt at the terminal and block a service.

    Raises ConfigError for a file that cannot be read.
    """
    password = secret_of(section, "key_password", table)

    def unlock() -> str:
        if password is None:
            raise PermissionError(0, f"the key is encrypted; set {table}.key_password or key_password_file")
        return password

    return unlock


def build_subscription(section: GroupSection) -> Subscription:
    """The subscription of the group section. Raises ConfigError."""
    key = chosen_key(section)
    try:
        if key in ("partitions", "topics"):
            topics = section.topics or dict.fromkeys(section.partitions, 1)
            for topic in topics:
                validate_topic(topic)
            return StaticSubscription(topics)
        if section.whitelist is not None:
            whitelist = TopicFilter(FilterKind.WHITELIST, section.whitelist)
            if section.broker_filter:
                whitelist.require_re2()
            return FilterSubscription(whitelist, section.streams)
        return FilterSubscription(TopicFilter(FilterKind.BLACKLIST, section.blacklist or ""), section.streams)
    except (RegistryError, InvalidTopicError) as error:
        raise ConfigError(f"group.{key}: {error}") from error


def build_settings(config: Config, *, clock: Clock, rng: Random) -> ConsumerSettings:
    """The member's settings, its id included. Raises ConfigError."""
    group = config.group
    return ConsumerSettings(
        group=group.id,
        consumer_id=member_id(group.id, group.consumer_id, clock=clock, rng=rng),
        fixed_id=group.consumer_id is not None,
        subscription=build_subscription(group),
        membership=config.rebalance,
        fetch=config.fetch,
        commit=config.commit,
        handler=config.handler,
    )


def build_offset_settings(config: Config) -> OffsetSettings:
    """Return the settings of the offset storage, with metadata and retention."""
    return OffsetSettings.of(config.commit, storage=config.group.storage)


def build_connection_settings(config: Config) -> ConnectionSettings:
    """Return the settings of connections to brokers."""
    return make_connection_settings(config.fetch)


def place_beside(section: HandlerSection) -> Path:
    """The file for letters that are too large for their topic: that of `dead_letter`.

    Without that, one in systemd's state directory, or else in the working directory.
    """
    if section.dead_letter is not None:
        return section.dead_letter
    folder, _, _ = os.environ.get("STATE_DIRECTORY", "").partition(":")
    return Path(folder) / f"{section.dead_letter_topic}.too-large.ndjson"
