"""A producer with everything that it needs: clock, randomness, connections, ZooKeeper session. For programs.

Strategy: `open_producer` builds the parts from a `ProducerConfig`, in the order in which they depend on each other, and
closes them in reverse. What tests replace (clock, randomness, connections) can be handed in.
"""

from __future__ import annotations

import random
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from consumerd.clock import SystemClock
from consumerd.net import connect as connect_to_broker
from consumerd.producer.async_producer import AsyncProducer
from consumerd.producer.encoders import DefaultEncoder, Encoder
from consumerd.producer.errors import PluginError
from consumerd.producer.events import CallbackHandler, EventHandler
from consumerd.producer.partitioners import load_partitioner
from consumerd.producer.plugins import load_instance
from consumerd.producer.producer import Producer
from consumerd.producer.routing import StaticRouter
from consumerd.producer.zookeeper_routing import ZooKeeperRouter
from consumerd.zk import Session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from consumerd.net import Connector
    from consumerd.ports import Clock
    from consumerd.producer.config import ProducerConfig
    from consumerd.producer.routing import Router

log = structlog.get_logger(__name__)


@asynccontextmanager
async def open_producer(
    config: ProducerConfig,
    *,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    connect: Connector | None = None,
) -> AsyncIterator[Producer | AsyncProducer]:
    """An AsyncProducer if `config.background`, else a Producer, for `async with`.

    Raises ConfigError (PluginError among it), ZooKeeperError when ZooKeeper does not answer, and at the end as
    `close` of the producer.
    """
    clock = clock or SystemClock()
    rng = rng or random.SystemRandom()
    connect = connect or partial(connect_to_broker, settings=config.connection)
    for name in config.ignored:
        log.warning("producer_property_without_effect", name=name)
    encoder = _part("encoder", config.encoder, Encoder) or DefaultEncoder()
    callbacks = _part("callback handler", config.callbacks, CallbackHandler)
    event_handler: EventHandler | None = _part("event handler", config.event_handler, EventHandler)
    partitioner = load_partitioner(config.partitioner)
    async with AsyncExitStack() as stack:
        router: Router
        if config.zookeeper is None:
            router = StaticRouter(config.brokers, rng=rng)
        else:
            session = Session(config.zookeeper, clock=clock, rng=rng, session_timeout=config.session_timeout)
            stack.push_async_callback(session.close)
            await session.start(config.session_wait)
            router = ZooKeeperRouter(session, rng=rng, partitioner=partitioner)
        producer = Producer(router, connect=connect, clock=clock, rng=rng, settings=config.settings, encoder=encoder)
        if not config.background:
            yield await stack.enter_async_context(producer)
            return
        queued = AsyncProducer(
            producer, clock=clock, queue=config.queue, callbacks=callbacks, event_handler=event_handler
        )
        yield await stack.enter_async_context(queued)


def _part(kind: str, given: Any, wanted: Any) -> Any:
    """The object that was given or named; None for None. Raises PluginError."""
    if given is None:
        return None
    found = load_instance(kind, f"consumerd.{kind.replace(' ', '_')}s", given) if isinstance(given, str) else given
    if not isinstance(found, wanted):
        raise PluginError(f"the {kind} {given!r} is a {type(found).__name__}, and no {wanted.__name__}.")
    return found
