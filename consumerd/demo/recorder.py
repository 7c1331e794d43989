"""Handlers that record every handover for `consumerd.demo.audit`: used by the demo and by kill tests.

Strategy: one NDJSON file per process, one line per batch, written with one write before `handle` returns, hence before
the offset can be committed. A file that a killed process left behind is therefore short of nothing that counts: a line
that it did not finish was not confirmed either. A claim is recorded when `position` asks for it, which happens
between the claim and the first fetch. Times are of the system's monotonic clock, the same for all processes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.demo.ledger import digest
from consumerd.handlers import Batch, Handler, HandlerContext
from consumerd.handlers.builtin.files import FilesHandler


class RecordHandler(Handler):
    """Options: `directory` for the record files; `pause`, seconds to spend on each batch after it is recorded."""

    def __init__(self, directory: str, pause: float = 0.0) -> None:
        self._directory = Path(directory)
        self._pause = pause
        self._descriptor: int | None = None
        self._member = ""
        self._sequence = 0
        self._clock: Clock | None = None

    async def start(self, context: HandlerContext) -> None:
        """Open a file of this process's own."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._clock = context.clock
        self._member = context.consumer_id
        path = self._directory / f"{context.consumer_id}-{os.getpid()}.ndjson"
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    async def stop(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    async def position(self, partition: TopicPartition) -> int | None:
        """Record the claim; the partition resumes at the committed offset."""
        self._write(partition, claim=True)
        return None

    async def handle(self, batch: Batch) -> None:
        """Record the batch, then take the time that `pause` asks for."""
        self.record(batch)
        batch.mark(len(batch))
        if self._pause and self._clock is not None:
            await self._clock.sleep(self._pause)

    def record(self, batch: Batch) -> None:
        """Write the batch's record."""
        messages = [
            (message.offset, message.index, f"{digest(message.payload or b''):016x}") for message in batch.messages()
        ]
        self._write(batch.partition, count=len(messages), messages=messages)

    def _write(self, partition: TopicPartition, **fields: Any) -> None:
        if self._descriptor is None or self._clock is None:
            raise RuntimeError("a handler is started before it is used")
        record = {
            "member": self._member,
            "sequence": self._sequence,
            "at": self._clock.monotonic(),
            "topic": partition.topic,
            "broker": partition.broker,
            "partition": partition.partition,
            **fields,
        }
        data = memoryview(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        while data:  # once, but for a full disk, which raises the next time
            data = data[os.write(self._descriptor, data) :]
        self._sequence += 1


class RecordedFilesHandler(Handler):
    """The `files` handler with a record of every handover. Options: `records` and `files`, a directory for each.

    The files know how far they are, and that wins over ZooKeeper. A batch is recorded first and stored then: one whose
    member dies in between comes again, and counts twice; the other way round it would be stored and count as lost.
    """

    def __init__(self, records: str, files: str) -> None:
        self._records = RecordHandler(records)
        self._files = FilesHandler(files)

    async def start(self, context: HandlerContext) -> None:
        """Open the record, make the directory of the files."""
        await self._records.start(context)
        await self._files.start(context)

    async def stop(self) -> None:
        """Close both."""
        await self._files.stop()
        await self._records.stop()

    async def position(self, partition: TopicPartition) -> int | None:
        """Take the partition's folder over and record the claim; where its files end."""
        position = await self._files.position(partition)
        await self._records.position(partition)
        return position

    async def handle(self, batch: Batch) -> None:
        """Record the batch and store it; it is handled when its file survives a loss of power."""
        self._records.record(batch)
        await self._files.handle(batch)
