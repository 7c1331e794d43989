"""A group member of another project, in a process of its own: kafka-python, aiokafka or confluent-kafka.

Strategy: it writes the record files that `consumerd.demo.recorder` describes, so that what it was given is
accounted for together with what our members were. Run as: group_member.py KIND BOOTSTRAP GROUP TOPIC ASSIGNOR FILE;
the assignor "consumer" stands for the consumer protocol, whose brokers assign.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import sys
import time
from types import SimpleNamespace
from typing import Any

from consumerd.demo.ledger import digest

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


def assignor_of(module: str, name: str) -> Any:
    """An assignor's class of kafka-python or aiokafka."""
    found = importlib.import_module(f"{module}.coordinator.assignors.{name}")
    return getattr(found, {"range": "RangePartitionAssignor", "roundrobin": "RoundRobinPartitionAssignor"}[name])


def run_kafka_python(bootstrap: str, group: str, topic: str, assignor: str, records: Records) -> None:
    import kafka

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
        partition_assignment_strategy=[assignor_of("kafka", assignor)],
        **COMMON,
    )
    consumer.subscribe([topic], listener=Listener())
    while not stopping:
        for partition, messages in consumer.poll(timeout_ms=200, max_records=50).items():
            records.handled(partition, messages)
            time.sleep(0.02)
            consumer.commit()
    consumer.close()


async def run_aiokafka(bootstrap: str, group: str, topic: str, assignor: str, records: Records) -> None:
    import aiokafka

    class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Any) -> None:
            async with working:  # rebalances run beside the loop: the current messages are finished before
                pass

        async def on_partitions_assigned(self, assigned: Any) -> None:
            records.assigned(assigned)

    working = asyncio.Lock()
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        partition_assignment_strategy=[assignor_of("aiokafka", assignor)],
        **COMMON,
    )
    consumer.subscribe([topic], listener=Listener())
    await consumer.start()
    while not stopping.is_set():
        async with working:
            for partition, messages in (await consumer.getmany(timeout_ms=200, max_records=50)).items():
                records.handled(partition, messages)
                await asyncio.sleep(0.02)
                # Else its messages come again, to the next owner.
                with contextlib.suppress(aiokafka.errors.CommitFailedError, aiokafka.errors.IllegalStateError):
                    await consumer.commit({partition: messages[-1].offset + 1})
        await asyncio.sleep(0)  # for a rebalance that waits
    await consumer.stop()


def run_confluent(bootstrap: str, group: str, topic: str, assignor: str, records: Records) -> None:
    import confluent_kafka

    positions: dict[int, int] = {}

    incremental = assignor == "consumer"

    def assigned(_: Any, partitions: Any) -> None:
        if not incremental:
            positions.clear()
        records.assigned(partitions)

    def revoked(_: Any, partitions: Any) -> None:
        if incremental and positions:
            commit()

    def commit() -> None:
        offsets = [confluent_kafka.TopicPartition(topic, number, at) for number, at in positions.items()]
        positions.clear()
        # Else a rebalance was faster, or the coordinator is unavailable: the messages are delivered again.
        with contextlib.suppress(confluent_kafka.KafkaException):
            consumer.commit(offsets=offsets, asynchronous=False)

    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **(
                {"group.protocol": "consumer"}
                if incremental
                else {
                    "session.timeout.ms": SESSION_MS,
                    "heartbeat.interval.ms": 500,
                    "partition.assignment.strategy": assignor,
                }
            ),
        }
    )
    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked)
    taken = 0
    while not stopping:
        # One at a time: a list may hold messages from before a rebalance that happened while it was filled.
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            place = SimpleNamespace(topic=topic, partition=partition)
            records.handled(place, [SimpleNamespace(offset=offset, value=message.value())])
            positions[partition] = offset + 1
            taken += 1
        if positions and (message is None or taken % 50 == 0):
            commit()
            time.sleep(0.02)
    if positions:
        commit()
    consumer.close()


def main() -> None:
    kind, bootstrap, group, topic, assignor, path = sys.argv[1:]
    records = Records(path)
    if kind == "kafka-python":
        run_kafka_python(bootstrap, group, topic, assignor, records)
    elif kind == "aiokafka":
        asyncio.run(run_aiokafka(bootstrap, group, topic, assignor, records))
    else:
        run_confluent(bootstrap, group, topic, assignor, records)


main()
