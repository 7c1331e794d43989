"""From the configuration to the parts that talk to brokers of 0.8 and later: client, membership, consumer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from consumerd.client import ChannelOpener, ClientSettings, ClusterClient, Plain, SaslAuthenticator, Scram
from consumerd.consumer import CoordinatedConsumer, FixedConsumer
from consumerd.daemon.build import build_connection_settings, build_tls
from consumerd.errors import ConfigError
from consumerd.group.coordinated_tables import CoordinationSettings
from consumerd.net import connect
from consumerd.partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from consumerd.client import Mechanism
    from consumerd.consumer import ConsumerSettings
    from consumerd.daemon.config import Config
    from consumerd.daemon.config_group import GroupSection
    from consumerd.daemon.config_servers import KafkaSection, SaslSection
    from consumerd.handlers import Handler
    from consumerd.ports import Clock


def build_bootstrap(section: KafkaSection) -> list[tuple[str, int]]:
    """The addresses to begin with. Raises ConfigError."""
    addresses = []
    for address in section.bootstrap:
        host, colon, port = address.strip().rpartition(":")
        if not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
            raise ConfigError(f"kafka.bootstrap: {address!r} is not of the form host:port.")
        addresses.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return addresses


def build_client(config: Config, *, clock: Clock, rng: Random) -> ClusterClient:
    """A client that connects when it is asked something. Raises ConfigError."""
    connection = build_connection_settings(config)
    settings = ClientSettings(client_id=config.kafka.client_id, connection=connection)
    tls = None if config.kafka.tls is None else build_tls(config.kafka.tls, "kafka.tls")
    authenticate = None if config.kafka.sasl is None else SaslAuthenticator(build_mechanism(config.kafka.sasl))
    opener = ChannelOpener(partial(connect, settings=connection, ssl=tls), settings, clock, authenticate=authenticate)
    return ClusterClient(build_bootstrap(config.kafka), opener, settings, clock=clock, rng=rng)


def build_mechanism(section: SaslSection) -> Callable[[], Mechanism]:
    """What begins to prove who we are. Raises ConfigError, also where the extra `sasl` is missing."""
    password = section.password
    if section.password_file is not None:
        try:
            password = section.password_file.read_text("utf-8").partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"kafka.sasl.password_file: {error}.") from error
    if not password:
        raise ConfigError(f"kafka.sasl.password_file: {section.password_file} holds no password in its first line.")
    make: Callable[[], Mechanism] = (
        partial(Plain, section.user, password)
        if section.mechanism == "PLAIN"
        else partial(Scram, section.mechanism, section.user, password)
    )
    make()  # a mechanism that cannot be had is known before the first connection
    return make


def build_coordination(config: Config) -> CoordinationSettings:
    """How the membership works where a broker coordinates it. Raises ConfigError."""
    group, rebalance = config.group, config.rebalance
    others = tuple(name for name in ("range", "roundrobin") if name != group.assignor)
    try:
        return CoordinationSettings(
            session_timeout=group.session_timeout,
            heartbeat_interval=group.heartbeat_interval,
            rebalance_timeout=group.rebalance_timeout,
            drain_timeout=rebalance.drain_timeout,
            look_interval=rebalance.reconcile_interval,
            retry_interval=rebalance.retry_interval,
            assignors=(group.assignor, *others),
            instance_id=group.instance_id,
        )
    except ValueError as error:
        raise ConfigError(f"group: {error}.") from error


def fixed_partitions(section: GroupSection) -> list[TopicPartition]:
    """Those that the configuration names, sorted."""
    return sorted(
        TopicPartition.numbered(topic, number)
        for topic, numbers in section.partitions.items()
        for number in set(numbers)
    )


def build_consumer(
    config: Config, settings: ConsumerSettings, handler: Handler, client: ClusterClient, *, clock: Clock, rng: Random
) -> CoordinatedConsumer | FixedConsumer:
    """The member that `group.coordination` asks for, where that is not ZooKeeper."""
    if config.group.coordination == "fixed":
        return FixedConsumer(
            settings,
            fixed_partitions(config.group),
            client=client,
            handler=handler,
            clock=clock,
            rng=rng,
            offsets=config.group.offsets,
        )
    return CoordinatedConsumer(
        settings, build_coordination(config), client=client, handler=handler, clock=clock, rng=rng
    )
