"""The context of a handler: what the stages add to it, and that it works without a member."""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.base.metrics.own import HandlerMetrics
from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, HandlerContext
from consumerd.service.config.build_handlers import build_handler
from consumerd.service.config.model import parse

CONTEXTS: list[HandlerContext] = []


class Keeping:
    """Keeps its context."""

    def __init__(self, token: str) -> None:
        self.token = token

    async def start(self, context: HandlerContext) -> None:
        CONTEXTS.append(context)

    async def handle(self, batch: Batch) -> None:
        return


async def test_has_name_settings_and_metrics(clock: Any) -> None:
    import random

    CONTEXTS.clear()
    metrics = HandlerMetrics("k")
    table = {"name": f"{__name__}:Keeping", "options": {"token": "hidden"}, "max_batch": 7}
    config = parse({"group": {"id": "g", "topics": {"t": 1}}, "handler": table}, "test", environment=False)
    handler = build_handler(config, clock=clock, rng=random.Random(1), metrics=metrics)
    await handler.start(HandlerContext("g", "g_1", clock))
    (context,) = CONTEXTS
    assert context.name == table["name"]
    assert (context.config["max_batch"], context.config["options"]) == (7, {"token": "hidden"})
    assert context.config["max_attempts"] == config.handler.max_attempts
    assert context.metrics is metrics
    assert "hidden" not in repr(context)
    with pytest.raises(TypeError):
        context.config["max_batch"] = 8  # type: ignore[index]


async def test_without_a_member_nothing_is_owned(clock: Any) -> None:
    context = HandlerContext("g", "g_1", clock)
    assert context.partitions == ()
    assert await context.cluster() is None
    assert await context.commit() == {}
    assert await context.committed(TopicPartition("t", 0, 0)) is None
    context.pause(TopicPartition("t", 0, 0))
    context.resume(TopicPartition("t", 0, 0))
