"""Batches of all partitions pass through to a plain handler, which may be exchanged."""

from __future__ import annotations

from typing import Any, cast

from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, Handler, HandlerContext
from consumerd.member.consumer.sinks import PlainHandler


class Recording:
    """Keeps its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    async def start(self, context: HandlerContext) -> None:
        self.calls.append(("start", context))

    async def stop(self) -> None:
        self.calls.append("stop")

    async def position(self, partition: TopicPartition) -> int | None:
        self.calls.append(("position", partition))
        return 7

    async def handle(self, batch: Batch) -> None:
        self.calls.append(("handle", batch))


async def test_passes_everything_to_the_handler_that_is_there_now() -> None:
    former, other = Recording(), Recording()
    plain = PlainHandler(cast("Handler", former))
    plain.replace(cast("Handler", other))
    partition, batch, context = TopicPartition("t", 0, 0), cast("Batch", [b"x"]), cast("HandlerContext", object())
    await plain.start(context)
    assert await plain.position(partition) == 7
    sink = plain.for_partition(partition, 0, lambda: True)
    assert sink is plain.for_partition(TopicPartition("t", 0, 1), 1, lambda: True)
    await sink.handle(batch)
    sink.settle()
    sink.wind_down()
    sink.discard()
    sink.hold(True)
    await plain.stop()
    assert other.calls == [("start", context), ("position", partition), ("handle", batch), "stop"]
    assert former.calls == []
