"""What a query asks of every split, and what a worker does before it reads one; the same for all kinds of splits."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Final

from pyspark import TaskContext

from consumerd.spark.source.columns import Mode
from consumerd.wire.v07 import DEFAULT_LIMITS, Limits

#: Bytes per FETCH: what Kafka 0.7's own consumers ask for (golden notes, 6).
DEFAULT_FETCH_SIZE: Final = 1 << 20
#: Seconds for connecting to a broker, and for each response.
DEFAULT_TIMEOUT: Final = 30.0


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What is asked of every split of a query.

    `columns`: names of `consumerd.spark.source.columns.COLUMNS` in the order of the batches. `fetch_size`: bytes asked
    of a broker at once. `timeout`: seconds that a broker may take for anything.
    """

    columns: tuple[str, ...]
    mode: Mode = Mode.PERMISSIVE
    fail_on_data_loss: bool = True
    limits: Limits = DEFAULT_LIMITS
    fetch_size: int = DEFAULT_FETCH_SIZE
    timeout: float = DEFAULT_TIMEOUT


_settled = False


def freeze_imports() -> None:
    """In a worker of Spark's: take what is imported out of the garbage collections, one of which ends each task."""
    global _settled  # noqa: PLW0603 - a process settles once
    if not _settled and TaskContext.get() is not None:
        _settled = True
        gc.collect()
        gc.freeze()
