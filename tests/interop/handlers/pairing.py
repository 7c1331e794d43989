"""A handler of the interop tests: `pairing:PairingHandler`, with this folder on PYTHONPATH."""

from __future__ import annotations

from consumerd.handlers.forward.transform import TransactionalHandler, TransactionBatch


class PairingHandler(TransactionalHandler):
    """Makes two messages of each, which are in two partitions of `topic`: a transaction has both, or none."""

    def __init__(self, bootstrap: list[str], topic: str) -> None:
        super().__init__(bootstrap, positions=topic)
        self._topic = topic

    async def transform(self, batch: TransactionBatch) -> None:
        for message in batch.messages():
            for partition, side in enumerate((b"left", b"right")):
                await batch.produce(self._topic, b"%b-%b" % (side, message.payload), partition=partition)
