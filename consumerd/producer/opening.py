"""A producer with everything that it needs: clock, randomness, connections, ZooKeeper session. For programs.

Strategy: `open_producer` builds the parts from a `ProducerConfig`, in the order in which they depend on each other, and
closes them in reverse. What tests replace (clock, randomness, connections) can be handed in.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import structlog

from consumerd.base.address import format_address, parse_addresses
from consumerd.base.clock import SystemClock
from consumerd.base.plugins import PluginKind, find_instance
from consumerd.base.ports import Clock
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.factory import find_broker, make_client, security_protocol
from consumerd.net.cluster.dialects import look_for_dialect
from consumerd.net.cluster.entry import start_session
from consumerd.net.cluster.view_v08 import V08ClusterView
from consumerd.net.connect import Connector
from consumerd.net.connect import connect as connect_to_broker
from consumerd.net.zk.session import Session
from consumerd.producer.cluster import ClusterProducer
from consumerd.producer.config import ProducerConfig
from consumerd.producer.encoders import DefaultEncoder, Encoder
from consumerd.producer.errors import NoBrokerError, PluginError
from consumerd.producer.partitioners import load_partitioner
from consumerd.producer.v07.async_producer import AsyncProducer
from consumerd.producer.v07.events import CallbackHandler, EventHandler
from consumerd.producer.v07.producer import Producer
from consumerd.producer.v07.routing import Router, StaticRouter, ZooKeeperRouter
from consumerd.producer.v08.producer import V08Producer
from consumerd.wire.registry.dialect import Dialect

log = structlog.get_logger(__name__)


@asynccontextmanager
async def open_producer(
    config: ProducerConfig,
    *,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    connect: Connector | None = None,
) -> AsyncIterator[Producer | AsyncProducer | ClusterProducer]:
    """The producer that the configuration asks for, for `async with`; all have the same methods.

    For brokers of 0.7 an AsyncProducer if `config.background`, else a Producer; for later ones a ClusterProducer.
    Raises ConfigError (PluginError among it), ZooKeeperError and BrokerError when ZooKeeper or the first brokers do not
    answer, NotFoundError when no cluster is at the chroot, and at the end as `close` of the producer.
    """
    clock = clock or SystemClock()
    rng = rng or random.Random()  # a number for most messages without a key: those of the system cost 8 µs each
    for name in config.ignored:
        log.warning("producer_property_ignored", name=name)
    encoder = _part("encoder", config.encoder, Encoder) or DefaultEncoder()
    callbacks = _part("callback handler", config.callbacks, CallbackHandler)
    event_handler: EventHandler | None = _part("event handler", config.event_handler, EventHandler)
    partitioner = load_partitioner(config.partitioner)
    async with AsyncExitStack() as stack:
        session: Session | None = None
        if config.zookeeper is not None:
            session = Session(config.zookeeper, clock=clock, rng=rng, session_timeout=config.session_timeout)
            stack.push_async_callback(session.close)
            await start_session(session, config.session_wait, clock, where="zookeeper", wait=True)
        if config.bootstrap or (session is not None and await _is_v08(session, config)):
            client = await stack.enter_async_context(await _client(session, config, connect, clock, rng))
            v08_producer = V08Producer(client, config.v08_settings(), clock=clock, rng=rng)
            chosen = None if config.partitioner is None else partitioner
            yield await stack.enter_async_context(
                ClusterProducer(v08_producer, background=config.background, encoder=encoder, partitioner=chosen)
            )
            return
        router: Router
        if session is None:
            router = StaticRouter(config.brokers, rng=rng)
        else:
            router = ZooKeeperRouter(session, rng=rng, partitioner=partitioner)
        connect = connect or partial(connect_to_broker, settings=config.connection)
        producer = Producer(router, connect=connect, clock=clock, rng=rng, settings=config.settings, encoder=encoder)
        if not config.background:
            yield await stack.enter_async_context(producer)
            return
        queued = AsyncProducer(
            producer, clock=clock, queue=config.queue, callbacks=callbacks, event_handler=event_handler
        )
        yield await stack.enter_async_context(queued)


async def _is_v08(session: Session, config: ProducerConfig) -> bool:
    """Whether the brokers that are registered are of 0.8 or later. Raises DialectError where they are of both kinds."""
    if config.dialect != "auto":
        return config.dialect == "0.8"
    return await look_for_dialect(session) is Dialect.V08


async def _client(
    session: Session | None, config: ProducerConfig, connect: Connector | None, clock: Clock, rng: random.Random
) -> ClusterClient:
    """A client that has found a broker. Raises NoBrokerError, ConfigError."""
    config.require_v08()
    addresses = parse_addresses(config.bootstrap, "bootstrap")
    if session is not None:
        protocol = security_protocol(tls=config.broker_tls is not None, sasl=config.sasl is not None)
        brokers = await V08ClusterView(session).read_brokers()
        addresses = [address for broker in brokers.values() if (address := broker.address(protocol)) is not None]
        if not addresses:
            raise NoBrokerError(f"no broker with a {protocol} listener is registered in ZooKeeper; is one running?")
    client = make_client(
        addresses,
        config.connection,
        client_id=config.client_id,
        tls=config.broker_tls,
        sasl=config.sasl,
        clock=clock,
        rng=rng,
        connector=connect,
    )
    try:
        await find_broker(client, [format_address(*address) for address in addresses], config.session_wait)
    except BaseException:
        await client.close()
        raise
    return client


def _part(kind: str, given: Any, wanted: Any) -> Any:
    """The object that was given or named; None for None. Raises PluginError."""
    if given is None:
        return None
    plugins = PluginKind(kind, f"consumerd.{kind.replace(' ', '_')}s", PluginError)
    found = find_instance(plugins, given) if isinstance(given, str) else given
    if not isinstance(found, wanted):
        raise PluginError(f"the {kind} {given!r} must be a {wanted.__name__}, not a {type(found).__name__}.")
    return found
