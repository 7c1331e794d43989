"""Open transactions at which readers of committed messages stop, and the producers that opened them.

Strategy: the end of what such readers may read is asked for after the end of the log, so if it is less, a transaction
is open. Its producer is named by the leader (DescribeProducers, since 2.8), and the transactional id by the broker that
coordinates it (ListTransactions, DescribeTransactions, since 3.0). A transaction that is open in the partition and at
no coordinator hangs: nothing ends it (KIP-664). What cannot be found out is a reason, and no error: a transaction is
worth knowing without its producer, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from consumerd.base.errors import BrokerError, reason_of
from consumerd.base.partition import TopicPartition
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import error_of, topic_error
from consumerd.operate.admin.logs import LogRange, LookupFailure
from consumerd.operate.admin.v08.logs import V08BrokerLogs
from consumerd.wire.errors import WireError
from consumerd.wire.v08.apis import DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import (
        DescribeProducersRequest,
        DescribeProducersResponsePartition,
        DescribeTransactionsRequest,
        ListTransactionsRequest,
    )

#: States of a transactional id whose transaction is over at the coordinator.
_ENDED: Final = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})


class TransactionOwner(NamedTuple):
    """What the coordinator says of a transaction. `timeout`: ms. `began`: ms since 1970, -1 for unknown."""

    transactional_id: str
    state: str
    timeout: int
    began: int


class OpenProducer(NamedTuple):
    """The producer of an open transaction. `last_write`: ms since 1970, -1 for unknown.

    `owner`: None where no coordinator shows the transaction. `hangs`: all of them answered, and none shows it.
    """

    id: int
    epoch: int
    last_write: int
    owner: TransactionOwner | None = None
    hangs: bool = False


class OpenTransaction(NamedTuple):
    """The first open transaction of a partition: where it begins, and how many messages are there from then on.

    `producer`: whose it is, or why that is not known.
    """

    start: int
    behind: int
    producer: OpenProducer | str


async def find_open_transactions(
    logs: V08BrokerLogs, ranges: Mapping[TopicPartition, LogRange | LookupFailure]
) -> dict[TopicPartition, OpenTransaction]:
    """The first open transaction of each partition that has one. `ranges` were read before. Raises nothing."""
    known = {partition: found for partition, found in ranges.items() if isinstance(found, LogRange)}
    ends = await logs.readable_ends(known)
    held = {partition: end for partition, end in ends.items() if end < known[partition].end}
    if logs.client is None or not held:
        return {}
    producers = await _with_owners(logs.client, await _producers(logs.client, held))
    return {each: OpenTransaction(start, known[each].end - start, producers[each]) for each, start in held.items()}


async def _producers(
    client: ClusterClient, starts: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OpenProducer | str]:
    led: defaultdict[int | None, list[TopicPartition]] = defaultdict(list)
    for partition in starts:
        node = client.metadata.leader(partition.topic, partition.partition)
        led[None if node is None else node.id].append(partition)
    found: dict[TopicPartition, OpenProducer | str] = dict.fromkeys(led.pop(None, ()), "the partition has no leader")
    for node_id, partitions in led.items():
        assert node_id is not None  # taken out above
        found |= dict.fromkeys(partitions, f"broker {node_id} did not name it")
        try:
            found |= await _ask(client, node_id, {each: starts[each] for each in partitions})
        except (BrokerError, WireError) as error:
            found |= dict.fromkeys(partitions, reason_of(error))
    return found


async def _with_owners(
    client: ClusterClient, producers: Mapping[TopicPartition, OpenProducer | str]
) -> dict[TopicPartition, OpenProducer | str]:
    """The producers with what the coordinators say of their transactions."""
    ids = sorted({each.id for each in producers.values() if isinstance(each, OpenProducer)})
    owners: dict[int, TransactionOwner] = {}
    complete = bool(ids)
    for node_id in sorted(client.metadata.nodes) if ids else ():
        try:
            owners |= await _owned_by(client, node_id, ids)
        except (BrokerError, WireError):
            complete = False
    return {
        partition: each
        if isinstance(each, str)
        else each._replace(owner=owners.get(each.id), hangs=complete and each.id not in owners)
        for partition, each in producers.items()
    }


async def _owned_by(client: ClusterClient, node_id: int, ids: Sequence[int]) -> dict[int, TransactionOwner]:
    """The open transactions of these producers that a broker coordinates."""
    body: ListTransactionsRequest = {"state_filters": (), "producer_id_filters": ids}
    listed = await client.call_node(node_id, LIST_TRANSACTIONS, body)
    if error := error_of(listed["error_code"], f"broker {node_id} listed no transactions"):
        raise error
    names = [
        each["transactional_id"] for each in listed["transaction_states"] if each["transaction_state"] not in _ENDED
    ]
    if not names:
        return {}
    named: DescribeTransactionsRequest = {"transactional_ids": names}
    described = await client.call_node(node_id, DESCRIBE_TRANSACTIONS, named)
    found: dict[int, TransactionOwner] = {}
    for each in described["transaction_states"]:
        if error := error_of(each["error_code"], f"broker {node_id} did not describe {each['transactional_id']!r}"):
            raise error
        if each["producer_id"] in ids and each["transaction_state"] not in _ENDED:
            found[each["producer_id"]] = TransactionOwner(
                each["transactional_id"],
                each["transaction_state"],
                each["transaction_timeout_ms"],
                each["transaction_start_time_ms"],
            )
    return found


async def _ask(
    client: ClusterClient, node_id: int, starts: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OpenProducer | str]:
    by_topic: defaultdict[str, list[int]] = defaultdict(list)
    for partition in starts:
        by_topic[partition.topic].append(partition.partition)
    body: DescribeProducersRequest = {
        "topics": [{"name": topic, "partition_indexes": numbers} for topic, numbers in by_topic.items()]
    }
    answer = await client.call_node(node_id, DESCRIBE_PRODUCERS, body)
    reported = {
        (topic["name"], part["partition_index"]): part for topic in answer["topics"] for part in topic["partitions"]
    }
    return {
        partition: _producer(reported[place], start, partition.topic)
        for partition, start in starts.items()
        if (place := (partition.topic, partition.partition)) in reported
    }


def _producer(part: DescribeProducersResponsePartition, start: int, topic: str) -> OpenProducer | str:
    if error := topic_error(part["error_code"], "the broker did not name it", topic, "Read"):
        return str(error)
    for each in part["active_producers"]:
        if each["current_txn_start_offset"] == start:
            return OpenProducer(each["producer_id"], each["producer_epoch"], each["last_timestamp"])
    return "the broker knows of no such producer any more"
