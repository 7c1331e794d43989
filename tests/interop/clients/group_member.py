"""A group member of another project, in a process of its own: kafka-python or aiokafka.

Strategy: it writes the record files that `consumerd.embedded.recorder` describes, so that what it was given is
accounted for together with what our members were. Run as: group_member.py KIND BOOTSTRAP GROUP TOPIC FILE.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from typing import Any

from consumerd.embedded.ledger import digest

SESSION_MS = 6000
COMMON = {
    "enable_auto_commit": False,
    "auto_offset_reset": "earliest",
    "session_timeout_ms": SESSION_MS,
    "heartbeat_interval_ms": 500,
}


class Records:
    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._sequence = 0

    def write(self, partition: Any, **fields: Any) -> None:
        record = {
            "member": f"foreign-{os.getpid()}",
            "sequence": self._sequence,
            "at": time.monotonic(),
            "topic": partition.topic,
            "broker": -1,
            "partition": partition.partition,
            **fields,
        }
        os.write(self._descriptor, json.dumps(record).encode() + b"\n")
        self._sequence += 1

    def assigned(self, partitions: Any) -> None:
        for partition in partitions:
            self.write(partition, claim=True)
        sys.stdout.write(f"assigned {sorted(partition.partition for partition in partitions)}\n")
        sys.stdout.flush()

    def handled(self, partition: Any, messages: Any) -> None:
        self.write(partition, messages=[(m.offset, 0, f"{digest(m.value):016x}") for m in messages])


def run_kafka_python(bootstrap: str, group: str, topic: str, records: Records) -> None:
    import kafka
    from kafka.coordinator.assignors.range import RangePartitionAssignor

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            records.assigned(assigned)

    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        partition_assignment_strategy=[RangePartitionAssignor],
        **COMMON,
    )
    consumer.subscribe([topic], listener=Listener())
    while not stopping:
        for partition, messages in consumer.poll(timeout_ms=200, max_records=50).items():
            records.handled(partition, messages)
            time.sleep(0.02)
            consumer.commit()
    consumer.close()


async def run_aiokafka(bootstrap: str, group: str, topic: str, records: Records) -> None:
    import aiokafka
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor

    class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        async def on_partitions_assigned(self, assigned: Any) -> None:
            records.assigned(assigned)

    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        partition_assignment_strategy=[RangePartitionAssignor],
        **COMMON,
    )
    consumer.subscribe([topic], listener=Listener())
    await consumer.start()
    while not stopping.is_set():
        for partition, messages in (await consumer.getmany(timeout_ms=200, max_records=50)).items():
            records.handled(partition, messages)
            await asyncio.sleep(0.02)
            with contextlib.suppress(aiokafka.errors.CommitFailedError):  # its messages come again, to the next owner
                await consumer.commit({partition: messages[-1].offset + 1})
    await consumer.stop()


def main() -> None:
    kind, bootstrap, group, topic, path = sys.argv[1:]
    records = Records(path)
    if kind == "kafka-python":
        run_kafka_python(bootstrap, group, topic, records)
    else:
        asyncio.run(run_aiokafka(bootstrap, group, topic, records))


main()
