"""Handlers that take every payload as an object, or every message, for `benchmarks.daemon` and `benchmarks.flame`."""

from __future__ import annotations

from consumerd.handlers import Batch, Handler, Message, message_handler


class TakeValues(Handler):
    """Adds up the lengths of all payloads."""

    def __init__(self) -> None:
        self.bytes = 0

    async def handle(self, batch: Batch) -> None:
        self.bytes += sum(map(len, batch.payloads))


@message_handler
async def each(message: Message) -> None:
    """Take one message, for `benchmarks.flame`."""
