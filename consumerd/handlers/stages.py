"""The stages that a batch passes on its way to a handler, in one order everywhere: daemon, replays, tests.

    decoding -> lanes per key -> retries and the failure policy -> the handler

Decoding comes first, so that keys can be taken from decoded values, and a message is decoded once however often it is
tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumerd.handlers.decoding.stage import Decoding
from consumerd.handlers.giving_up import GivingUp
from consumerd.handlers.key_lanes import KeyLanes
from consumerd.handlers.retry import retrying
from consumerd.metrics import HandlerCounts

if TYPE_CHECKING:
    import random

    from consumerd.handlers.api import Handler
    from consumerd.handlers.dead_letters import DeadLetters
    from consumerd.handlers.decoding.api import Decoder
    from consumerd.handlers.retry import RetryPolicy
    from consumerd.ports import Clock


@dataclass(frozen=True, slots=True)
class Stages:
    """What is around the handler that errors and logs call `name`."""

    name: str = "handler"
    #: None delivers payloads as they are.
    decoder: Decoder | None = None
    decoder_name: str = "decoder"

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
    ) -> Handler:
        """`plugin` with all stages; with that many `lanes` for each partition, or in its order.

        What comes of failures is added to `counts`. `dead_letters` are started and stopped with the handler. Raises
        HandlerLoadError where lanes do not suit the handler.
        """
        counts = HandlerCounts() if counts is None else counts
        handler = retrying(
            plugin, policy, clock=clock, rng=rng, name=self.name, dead_letters=dead_letters, counts=counts
        )
        giving_up = GivingUp(self.name, policy.on_failure, dead_letters, counts)
        if lanes is not None:
            handler = KeyLanes(handler, lanes, plugin=plugin, name=self.name, giving_up=giving_up)
        if self.decoder is not None:
            handler = Decoding(handler, self.decoder, giving_up, counts, name=self.decoder_name)
        return handler
