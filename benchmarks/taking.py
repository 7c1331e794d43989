"""A handler of batches that takes every payload as an object, for `benchmarks.daemon`."""

from __future__ import annotations

from consumerd.handlers import Batch, Handler


class TakeValues(Handler):
    """Adds up the lengths of all payloads."""

    def __init__(self) -> None:
        self.bytes = 0

    async def handle(self, batch: Batch) -> None:
        self.bytes += sum(map(len, batch.payloads))
