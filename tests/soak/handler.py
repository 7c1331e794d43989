"""Handlers of members: one that records a range for each batch instead of all messages, and one that counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zlib import crc32

from consumerd.handlers import Batch, Handler
from tests.torture.handler import StoringRecordHandler


class RangeRecordHandler(StoringRecordHandler):
    """Records where a batch begins, how many messages it has, and the sum of their CRCs."""

    def record(self, batch: Batch) -> None:
        """Write the batch's record."""
        count = total = 0
        first = (0, 0)
        for message in batch.messages():
            if not count:
                first = (message.offset, message.index)
            count += 1
            total += crc32(message.payload or b"")
        self._write(batch.partition, first=first, count=count, sum=total)


class CountingHandler(Handler):
    """Looks at no message. At the end it writes how many there were, and where the last one ended, to `path`."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._partitions: dict[str, dict[str, int]] = {}
        self._gaps = 0

    async def handle(self, batch: Batch) -> None:
        """Count."""
        state = self._partitions.setdefault(batch.partition.name, {"messages": 0, "next_offset": 0})
        self._gaps += batch.start_offset != state["next_offset"]
        state["messages"] += len(batch)
        state["next_offset"] = batch.next_offset

    async def stop(self) -> None:
        """Write the counts."""
        counts: dict[str, Any] = {"partitions": self._partitions, "gaps": self._gaps}
        self._path.write_text(json.dumps(counts), "utf-8")
