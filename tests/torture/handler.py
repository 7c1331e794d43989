"""The members' handler: it stores each batch on a disk that may be full, then records it for the audit.

Beside it a sink with a planted defect, which a run has to find.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from consumerd.base.partition import TopicPartition
from consumerd.demo.recorder import RecordHandler
from consumerd.handlers import Batch
from consumerd.handlers.builtin.files import FilesHandler

_LOOK_SECONDS = 0.05


class StoringRecordHandler(RecordHandler):
    """Options: those of `RecordHandler`; `disk`, the folder where batches are stored; `hang`, a file.

    A batch is recorded after its file is on the disk: what a full disk refuses was not handled, and comes again. While
    the file `hang` exists a batch hangs before anything is done with it, and its time of change says so.
    """

    def __init__(self, directory: str, disk: str, hang: str | None = None, pause: float = 0.0) -> None:
        super().__init__(directory, pause)
        self._disk = Path(disk)
        self._hang = None if hang is None else Path(hang)

    async def handle(self, batch: Batch) -> None:
        """Store, record, take the time that `pause` asks for."""
        while self._hang is not None and self._hang.exists():
            self._hang.with_suffix(".hung").touch()
            await asyncio.sleep(_LOOK_SECONDS)
        path = self._disk / f"{os.getpid()}-{batch.partition.topic}-{batch.partition.name}"
        try:
            with path.open("wb", buffering=0) as file:
                data = memoryview(b"\n".join(message.payload or b"" for message in batch.messages()) or b"-")
                while data:  # a disk that is almost full takes a part
                    data = data[file.write(data) :]
        finally:
            path.unlink(missing_ok=True)
        await super().handle(batch)


class ForgetfulFilesHandler(FilesHandler):
    """As the handler `files`, but it does not tell where the files of a former owner end: what was not committed is
    stored again. For tests of the torture itself.
    """

    def __init__(self, directory: str) -> None:
        super().__init__(Path(directory) / str(os.getpid()))

    async def position(self, partition: TopicPartition) -> int | None:
        """Take the folder over, and forget what it holds."""
        await super().position(partition)
        return None
