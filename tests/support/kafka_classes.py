"""Stores the classes of the broker that most tests start, for `make test-all`: `python -m tests.support.kafka_classes`.

Strategy: as for Spark (`tests.support.spark_jvm`), an archive of application class-data sharing beside the virtual
environment. A broker writes it when it stops.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from consumerd.base.java import find_java
from tests.support.kafka import CLASSES, RELEASES, SHARED_RELEASE, SILENT, KafkaBroker

_START_SECONDS = 60.0


async def store_classes(archive: Path) -> None:
    """Start a broker, and stop it. Raises MissingRuntimeError and KafkaStartError."""
    with tempfile.TemporaryDirectory() as folder:
        options = (f"-XX:ArchiveClassesAtExit={archive}", *SILENT)
        broker = KafkaBroker(Path(folder) / "broker", RELEASES[SHARED_RELEASE], None, java=find_java(), jvm=options)
        await broker.start(_START_SECONDS)
        await broker.stop()


if __name__ == "__main__":
    written = CLASSES.with_suffix(".new")
    written.unlink(missing_ok=True)
    asyncio.run(store_classes(written))
    written.replace(CLASSES)
