"""A handler of the interop tests: `holding:HoldingHandler`, with this folder on PYTHONPATH."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from consumerd.demo.recorder import RecordHandler
from consumerd.handlers import Batch
from consumerd.handlers.threads import in_thread


class HoldingHandler(RecordHandler):
    """Records a batch, then does not end as long as the file `hold` exists, and says so in `hold`.broker-partition.

    `obeys`: whether it ends when it is cancelled, as a coroutine does, or not, as a thread.
    """

    def __init__(self, directory: str, hold: str, obeys: bool) -> None:
        super().__init__(directory)
        self._hold = Path(hold)
        self._obeys = obeys

    async def handle(self, batch: Batch) -> None:
        await super().handle(batch)
        if not self._hold.exists():
            return
        self._hold.with_name(f"{self._hold.name}.{batch.partition.name}").touch()
        if not self._obeys:
            await in_thread(self._wait)
        while self._hold.exists():
            await asyncio.sleep(0.02)

    def _wait(self) -> None:
        while self._hold.exists():
            time.sleep(0.02)
