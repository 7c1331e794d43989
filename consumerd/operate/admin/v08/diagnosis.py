"""Diagnosis of a group of Kafka 0.8 or later, coordinated in ZooKeeper or by a broker.

Strategy: this module has the checks that groups of 0.7 do not need; the common ones are the same code. Where a broker
coordinates, it keeps the state of the members, and no member can block another, so the checks are for
groups that do not finish rebalancing, partitions that the leader does not assign, and owners that do not work.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from consumerd.base.partition import TopicPartition
from consumerd.operate.admin.diagnosis_offsets import DiagnosisInput
from consumerd.operate.admin.findings import GroupFinding, GroupFindingKind, listed
from consumerd.operate.admin.snapshot import GroupSnapshot
from consumerd.operate.admin.v08.broker_groups import MOVING
from consumerd.operate.admin.v08.snapshot import V08GroupSnapshot
from consumerd.operate.admin.v08.transactions import OpenProducer, OpenTransaction

#: States of groups whose members have no partitions just now (`AwaitingSync` until 1.0).
_REBALANCING: Final = frozenset({"PreparingRebalance", "CompletingRebalance", "AwaitingSync"})
_STABLE: Final = "Stable"


def store_findings(first: DiagnosisInput, second: DiagnosisInput) -> Iterable[GroupFinding]:
    """Offsets in ZooKeeper and at a broker that do not follow each other; both snapshots may be the same one.

    A store is left behind if its offset in the second snapshot is less than the other store's in the first.
    """
    for partition, kept in second.kept.items():
        here = second.snapshot.view.offsets.get(partition)
        before = first.snapshot.view.offsets.get(partition), first.kept.get(partition)
        if here is None or here == kept or before[0] is None or before[1] is None:
            continue
        if min(here, kept) < max(before[0], before[1]):
            behind = "brokers" if kept < here else "ZooKeeper"
            yield GroupFinding(
                GroupFindingKind.STORES_DIFFER,
                str(partition),
                f"ZooKeeper has the offset {here}, and brokers have {kept}, {abs(here - kept)} messages apart: no "
                f"member commits to {behind}. Members with offsets.storage=zookeeper start at the first, those with "
                "kafka at the second; with dual.commit.enabled, at the greater.",
                "If the group has moved, ignore the older offset, and check that no member uses it. Otherwise stop the "
                "group and make them equal with `consumerd migrate offsets` or `consumerd offsets set`.",
            )


def transaction_findings(first: DiagnosisInput, second: DiagnosisInput) -> Iterable[GroupFinding]:
    """Partitions whose readers of committed messages stand at a transaction that both snapshots have."""
    for partition in second.transactions:
        held, before = second.held_back(partition), first.transactions.get(partition)
        if held is None or before is None or before.start != held.start:
            continue
        topic, number = partition.topic, partition.partition
        yield GroupFinding(
            GroupFindingKind.OPEN_TRANSACTION,
            str(partition),
            f"A transaction is open since offset {held.start}, where the group stands: members that read only "
            f"committed messages (isolation read_committed) get none of the {held.behind} messages from there on. "
            f"{_producer(held)}",
            f"{_way_out(before, held)} Kafka's own tool ends it: kafka-transactions.sh --bootstrap-server BROKER abort "
            f"--topic {topic} --partition {number} --start-offset {held.start}",
        )


def _way_out(*looks: OpenTransaction) -> str:
    if all(isinstance(each.producer, OpenProducer) and each.producer.hangs for each in looks):
        return (
            "No coordinator shows the transaction: it hangs, and nothing ends it by itself, unless this client lacks "
            "the permission Describe on its transactional id."
        )
    return (
        "Find the application and let it commit or abort, or wait: brokers end the transaction when its time is up "
        "(transaction.timeout.ms of the producer). If it stays, no coordinator knows it any more, and"
    )


def _producer(transaction: OpenTransaction) -> str:
    producer = transaction.producer
    if isinstance(producer, str):
        return f"Its producer is not known: {producer}."
    wrote = ""
    if producer.last_write >= 0:
        wrote = f", which wrote last at {datetime.fromtimestamp(producer.last_write / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    owner = ""
    if producer.owner is not None:
        name, state, timeout, began = producer.owner
        since = "" if began < 0 else f" since {datetime.fromtimestamp(began / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
        owner = f"; transactional id {name!r}, {state}{since}, with a timeout of {timeout / 1000:g} s"
    return f"It is of the producer with id {producer.id} and epoch {producer.epoch}{wrote}{owner}."


# -- where a broker coordinates


def broker_findings(snapshot: GroupSnapshot) -> Iterable[GroupFinding]:
    """Findings about the members that a broker knows, and about partitions that these were not assigned."""
    assert isinstance(snapshot, V08GroupSnapshot)
    if not snapshot.view.members and not snapshot.view.problems:
        yield GroupFinding(
            GroupFindingKind.NO_MEMBERS,
            snapshot.group,
            "The group has no members known to a broker, so no partition has or needs an owner.",
            "Start a member; if the group is dead, delete it with `consumerd group delete`. Old consumers that commit "
            "to brokers (offsets.storage=kafka) are members in ZooKeeper: check it with --zookeeper.",
        )
    if snapshot.state in _REBALANCING:
        members = [snapshot.clients.get(name, name) for name in snapshot.view.members]
        yield GroupFinding(
            GroupFindingKind.REBALANCING,
            snapshot.group,
            f"The group is rebalancing ({snapshot.state}), and its {len(members)} members have no partitions until "
            f"that ends: {listed(members)}. A member whose handler does not return blocks the others until its "
            "max.poll.interval.ms has passed; one that keeps joining and leaving restarts the rebalance.",
            "Find the member that is late or restarts in the members' logs, and stop it.",
        )
    if snapshot.moving is not None and snapshot.state in MOVING:
        late = [snapshot.clients.get(name, name) for name in snapshot.moving]
        yield GroupFinding(
            GroupFindingKind.REBALANCING,
            snapshot.group,
            f"The group is rebalancing ({snapshot.state}): its coordinator has made a new assignment, which "
            f"{len(late)} of {len(snapshot.view.members)} members have not adopted: {listed(late)}. The others "
            "continue. A member whose handler does not return is removed when its max.poll.interval.ms has passed.",
            "Check the logs of these members, and restart one that hangs.",
        )
    if snapshot.state != _STABLE or any(member.subscription is None for member in snapshot.view.members.values()):
        return  # the assignments or subscriptions are unknown
    for topic, numbers in snapshot.subscribed.items():
        for number in numbers:
            partition = TopicPartition.numbered(topic, number)
            if partition not in snapshot.view.owners:
                yield GroupFinding(
                    GroupFindingKind.UNOWNED,
                    str(partition),
                    f"The partition has no owner, though members subscribe to its topic: {_leader(snapshot)} did not "
                    f"assign it. The partition may be newer than the metadata of the {_dealer(snapshot)}, or the "
                    "members' subscriptions differ.",
                    "Wait until it refreshes its metadata (metadata.max.age.ms, 5 minutes by default); if that does "
                    "not help, restart a member to start a new assignment.",
                )


def _leader(snapshot: V08GroupSnapshot) -> str:
    assignor = f" ({snapshot.assignor})" if snapshot.assignor else ""
    return f"the group's {_dealer(snapshot)}{assignor}"


def _dealer(snapshot: V08GroupSnapshot) -> str:
    return "leader" if snapshot.moving is None else "coordinator"


# -- the cluster


def leader_findings(inputs: DiagnosisInput) -> Iterable[GroupFinding]:
    """Partitions that exist and have no leader."""
    for partition in filter(inputs.is_leaderless, inputs.snapshot.partitions()):
        replicas = ", ".join(map(str, inputs.topics[partition.topic][partition.partition].replicas))
        yield GroupFinding(
            GroupFindingKind.NO_LEADER,
            str(partition),
            "The partition has no leader, so it can be neither written nor read; its owner waits. Its replicas are "
            f"on brokers {replicas}.",
            "Restart one of these brokers, if possible one that was in sync; see `consumerd topics describe`.",
        )
