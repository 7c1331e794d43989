"""From the configuration to a topic for dead letters: in the cluster that messages come from, in either dialect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from random import Random
from typing import Final, NamedTuple

import structlog

from consumerd.base.errors import BrokerError, ConfigError, NotFoundError, reason_of
from consumerd.base.ports import Clock
from consumerd.handlers import DeadLetters
from consumerd.handlers.dead_letter_topic import DEAD_LETTER_TOPIC, RETRY_TOPIC, LetterProducer, TopicDeadLetters
from consumerd.handlers.dead_letters import letter_size
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import BrokerRefusedError
from consumerd.net.client.factory import find_broker
from consumerd.net.client.topic_configs import message_limits
from consumerd.net.cluster.dialects import look_for_dialect
from consumerd.net.cluster.view_v08 import V08ClusterView
from consumerd.net.connect import connect
from consumerd.net.zk.session import Session
from consumerd.producer import (
    ClusterProducer,
    NoBrokerError,
    Producer,
    ProducerSettings,
    V08Producer,
    V08ProducerSettings,
    ZooKeeperRouter,
)
from consumerd.service.config.build import build_connection_settings, build_subscription, open_session, place_beside
from consumerd.service.config.build_v08 import build_bootstrap, build_client_of, listener_protocol, names_brokers
from consumerd.service.config.model import Config
from consumerd.wire.errors import InvalidTopicError
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.v07 import validate_topic
from consumerd.wire.v08.error_codes import ErrorCode

log = structlog.get_logger(__name__)

#: Seconds for the brokers to create a topic, or to learn of one that was just created.
_TOPIC_SECONDS: Final = 10.0


class _Opened(NamedTuple):
    producer: LetterProducer
    headers: bool
    #: The producer below, for brokers of 0.8 and later.
    v08: V08Producer | None = None
    client: ClusterClient | None = None


def build_letter_topic(
    config: Config, topic: str, *, clock: Clock, rng: Random, beside: DeadLetters | None = None
) -> TopicDeadLetters:
    """The topic, its producer not opened, and the place for letters that are too large for it.

    Raises ConfigError where the daemon would consume its own dead letters.
    """
    key = _key_of(config)
    try:
        validate_topic(topic)
    except InvalidTopicError as error:
        raise ConfigError(f"{key}: {error}") from error
    if build_subscription(config.group).streams_for(topic):
        raise ConfigError(
            f"{key}: the group consumes {topic!r} itself, so what fails would fail for ever; "
            "name another topic, or exclude this one from [group]."
        )
    opened = partial(_opened, config, topic, clock=clock, rng=rng)
    as_json = config.handler.dead_letter_as == "json"
    if key == RETRY_TOPIC:
        return TopicDeadLetters(topic, opened, clock=clock, beside=beside, key=key)
    return TopicDeadLetters(topic, opened, clock=clock, as_json=as_json, beside=beside)


def _key_of(config: Config) -> str:
    """The key that names the topic for what fails first."""
    return RETRY_TOPIC if config.handler.retry_topics else DEAD_LETTER_TOPIC


@asynccontextmanager
async def _opened(config: Config, topic: str, *, clock: Clock, rng: Random) -> AsyncIterator[_Opened]:
    """As `letter_producer`; raises NotFoundError where the topic does not exist and is not created.

    Logs it where the topic takes less than the largest letters.
    """
    async with letter_producer(config, clock=clock, rng=rng) as opened:
        if opened.v08 is not None and opened.client is not None:
            await require_topic(opened.v08, topic, _key_of(config))
            try:
                if (small := await compare_limits(opened.client, config, topic)) is not None:
                    log.info("dead_letter_topic_too_small", topic=topic, reason=small)
            except BrokerError as error:
                log.debug("dead_letter_limits_unknown", topic=topic, reason=reason_of(error))
        yield opened


async def compare_limits(client: ClusterClient, config: Config, topic: str) -> str | None:
    """Compare `max.message.bytes` of the dead-letter topic with those of the topics that the group consumes.

    Returns a sentence where it takes less than the largest letters. Raises BrokerError where the brokers do not tell.
    """
    sources = [*(config.group.topics or config.group.partitions)]
    if not sources:
        subscription, metadata = build_subscription(config.group), await client.refresh(None)
        sources = [name for name in sorted(metadata.topics) if subscription.streams_for(name)]
    limits = await message_limits(client, [topic, *sources])
    found = max(((limits[name], name) for name in sources if name in limits), default=None)
    if found is None or topic not in limits:
        return None
    largest, source = found
    needed = letter_size(largest, as_json=config.handler.dead_letter_as == "json")
    if limits[topic] >= needed:
        return None
    return (
        f"messages of {source} may have {largest} bytes and their letters {needed}, but max.message.bytes of {topic} "
        f"is {limits[topic]}: raise it; larger letters go to {place_beside(config.handler)}"
    )


async def require_topic(producer: V08Producer, topic: str, key: str = DEAD_LETTER_TOPIC) -> None:
    """Find the topic, which the brokers may create. Raises NotFoundError, BrokerError."""
    try:
        await producer.partition_count(topic, timeout=_TOPIC_SECONDS)
    except BrokerRefusedError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise NotFoundError(
            f"{key}: the topic {topic!r} does not exist, and the brokers do not create it "
            f"(auto.create.topics.enable); create it: consumerd topics create --topic {topic}"
        ) from error


@asynccontextmanager
async def letter_producer(config: Config, *, clock: Clock, rng: Random) -> AsyncIterator[_Opened]:
    """A producer to the cluster that `config` consumes from. Raises ZooKeeperError, BrokerError, ConfigError."""
    async with AsyncExitStack() as stack:
        if config.group.coordination != "zookeeper":
            yield await _v08(config, build_bootstrap(config.kafka), stack, clock, rng)
            return
        session = await open_session(stack, config.zookeeper, clock, rng)
        dialect = config.group.dialect
        if dialect == "0.7" or (dialect == "auto" and await look_for_dialect(session) is not Dialect.V08):
            connector = partial(connect, settings=build_connection_settings(config))
            # Brokers of 0.7 confirm nothing by themselves, and silently drop messages that are too large.
            settings = ProducerSettings(verify=True)
            router = ZooKeeperRouter(session, rng=rng)
            producer = Producer(router, connect=connector, clock=clock, rng=rng, settings=settings)
            yield _Opened(await stack.enter_async_context(producer), headers=False)
            return
        yield await _v08(config, await registered_brokers(config, session), stack, clock, rng)


async def registered_brokers(config: Config, session: Session) -> list[tuple[str, int]]:
    """Return the brokers of 0.8 or later to connect to first: those of the configuration, else the registered ones."""
    if names_brokers(config):
        return build_bootstrap(config.kafka)
    protocol = listener_protocol(config.kafka)
    brokers = await V08ClusterView(session).read_brokers()
    addresses = [address for broker in brokers.values() if (address := broker.address(protocol)) is not None]
    if not addresses:
        raise NoBrokerError(f"no broker with a {protocol} listener is registered in ZooKeeper; is one running?")
    return addresses


async def opened_client(
    config: Config, addresses: list[tuple[str, int]], stack: AsyncExitStack, clock: Clock, rng: Random
) -> ClusterClient:
    """A client beside that of the members, which has found a broker. Raises BrokerError."""
    connection = build_connection_settings(config)
    client = build_client_of(config.kafka, connection, clock=clock, rng=rng, bootstrap=addresses)
    await stack.enter_async_context(client)
    await find_broker(client, [f"{host}:{port}" for host, port in addresses], config.kafka.connection_timeout)
    return client


async def _v08(
    config: Config, addresses: list[tuple[str, int]], stack: AsyncExitStack, clock: Clock, rng: Random
) -> _Opened:
    client = await opened_client(config, addresses, stack, clock, rng)
    # What does not fit is not stored behind other letters: a shorter one takes its place.
    producer = V08Producer(client, V08ProducerSettings(), clock=clock, rng=rng, divides=False)
    await producer.start()
    # Each letter was awaited. One whose wait was cancelled is written again, as its message is not committed.
    stack.push_async_callback(producer.abort)
    return _Opened(ClusterProducer(producer), headers=True, v08=producer, client=client)
