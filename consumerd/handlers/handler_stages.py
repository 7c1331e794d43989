"""The stages that a batch passes on its way to a handler, in one order everywhere: daemon, replays, tests.

    decoding -> lanes per key -> retries and the failure policy -> middleware -> the handler

Decoding comes first, so that keys can be taken from decoded values, and a message is decoded once however often it is
tried.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from consumerd.base.errors import HandlerLoadError
from consumerd.base.metrics.own import HandlerMetrics
from consumerd.base.ports import Clock
from consumerd.base.settings.processing import RetryPolicy
from consumerd.handlers.api import Handler, HandlerStage, keeps_positions
from consumerd.handlers.context import HandlerContext
from consumerd.handlers.counts import HandlerCounts
from consumerd.handlers.dead_letters import DeadLetters
from consumerd.handlers.decoding.api import Decoder
from consumerd.handlers.decoding.stage import Decoding
from consumerd.handlers.disk_full import DiskSpace
from consumerd.handlers.giving_up import GivingUp
from consumerd.handlers.key_lanes import KeyLanes
from consumerd.handlers.loading import plain_handler
from consumerd.handlers.middleware import NamedMiddleware, WithMiddleware
from consumerd.handlers.retry import retrying
from consumerd.handlers.retry_order import RetryOrder


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages around the handler, which errors and logs call `name`."""

    name: str = "handler"
    #: None delivers payloads as they are.
    decoder: Decoder | None = None
    decoder_name: str = "decoder"
    #: The first one is the outermost.
    middleware: Sequence[NamedMiddleware] = ()
    #: The table `[handler]`, for the handler's context.
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    #: The registry of the handler's own metrics; by default one that is not read.
    metrics: HandlerMetrics | None = None

    def check(self, plugin: Handler) -> None:
        """Raise HandlerLoadError where the decoder does not suit the handler, as its plugin made it."""
        if self.decoder is not None and keeps_positions(plain_handler(plugin)):
            # A run may end within a compressed message, where a sink has no position to store it under.
            raise HandlerLoadError(
                f"handler {self.name!r} keeps the positions of partitions, so it needs compressed messages whole, and "
                "a decoder may divide them: remove handler.decoder, and decode in the handler if need be."
            )

    def around(
        self,
        plugin: Handler,
        policy: RetryPolicy,
        *,
        clock: Clock,
        rng: random.Random,
        dead_letters: DeadLetters | None = None,
        counts: HandlerCounts | None = None,
        lanes: int | None = None,
        order: RetryOrder | None = None,
    ) -> Handler:
        """`plugin` with all stages; with that many `lanes` for each partition, or in its order.

        The results of failures are added to `counts`. `dead_letters` and `order` (as in `retrying`) are started and
        stopped with the handler. Raises HandlerLoadError where lanes or `bisect` do not suit the handler.
        """
        if policy.bisect and keeps_positions(plain_handler(plugin)):
            # A half may end within a compressed message, where a sink has no position to store it under.
            raise HandlerLoadError(
                f"handler {self.name!r} keeps the positions of partitions, so it needs compressed messages whole, and "
                "bisect divides them: remove handler.bisect."
            )
        counts = HandlerCounts() if counts is None else counts
        inner = _Introduced(WithMiddleware(plugin, self.middleware) if self.middleware else plugin, self)
        handler = retrying(
            inner, policy, clock=clock, rng=rng, name=self.name, dead_letters=dead_letters, counts=counts, order=order
        )
        space = DiskSpace(policy.on_disk_full, policy.max_backoff, clock=clock, rng=rng, name=self.name, counts=counts)
        giving_up = GivingUp(self.name, policy.on_failure, dead_letters, counts, space, order)
        if lanes is not None:
            handler = KeyLanes(handler, lanes, plugin=plugin, name=self.name, giving_up=giving_up)
        if self.decoder is not None:
            handler = Decoding(handler, self.decoder, giving_up, counts, name=self.decoder_name)
        return handler


class _Introduced(HandlerStage):
    """Completes the context that the member gives."""

    def __init__(self, inner: Handler, stages: Stages) -> None:
        super().__init__(inner)
        self._stages = stages
        self.handle = inner.handle  # type: ignore[method-assign]  # itself: one call less for each batch

    async def start(self, context: HandlerContext) -> None:
        stages = self._stages
        await super().start(
            replace(
                context,
                name=stages.name,
                config=MappingProxyType(dict(stages.config)),
                metrics=stages.metrics or HandlerMetrics(stages.name),
            )
        )
