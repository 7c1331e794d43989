"""Diagnosis of the committed offsets of a group.

Strategy: one snapshot compares each offset with what the brokers have. Progress takes two snapshots, and has a
module of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from consumerd.base.partition import NO_BROKER, LogId, TopicPartition
from consumerd.member.fetch.log_changes import LogChange, LogChangeKind
from consumerd.net.cluster.view_v08 import V08Topics
from consumerd.operate.admin.findings import GroupFinding, GroupFindingKind, OffsetReset, capital, listed
from consumerd.operate.admin.logs import LogRange, LookupFailure
from consumerd.operate.admin.snapshot import GroupSnapshot
from consumerd.operate.admin.v08.transactions import OpenTransaction
from consumerd.wire.registry.dialect import Dialect
from consumerd.wire.registry.paths import broker_ids_path, offset_path, topic_path

_KEEP_07 = "Keep it if the broker comes back; otherwise it is harmless, and `consumerd group delete` removes it."
_KEEP = (
    "It is harmless while the partition does not exist. A partition created again begins at 0: reset the offset then."
)
_RESET = "`consumerd offsets reset` while the group is stopped"


@dataclass(frozen=True, slots=True)
class DiagnosisInput:
    """A snapshot with the ranges of its partitions, at one time (seconds of any clock)."""

    snapshot: GroupSnapshot
    ranges: Mapping[TopicPartition, LogRange | LookupFailure]
    at: float
    #: Since 0.8: the metadata of the partitions of the snapshot's topics.
    topics: V08Topics = field(default_factory=dict)
    #: Of a group in ZooKeeper: what brokers keep for partitions that have an offset in ZooKeeper, too.
    kept: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: Of a group in ZooKeeper since 0.8: the transactions that created the nodes of its topics.
    created: Mapping[str, int] = field(default_factory=dict)
    #: Of 0.7: the partitions whose offset is inside a message, with the offset at which that begins.
    inside: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: Sentences about data that could not be read.
    unknown: tuple[str, ...] = ()
    #: The first open transaction of each partition that has one.
    transactions: Mapping[TopicPartition, OpenTransaction] = field(default_factory=dict)
    #: The ids of the topics, of brokers since 2.8.
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)
    #: Since 0.11: logs that do not have the message before the committed offset any more, by its leader epoch.
    cut_off: Mapping[TopicPartition, LogChange] = field(default_factory=dict)
    #: The brokers that are registered in ZooKeeper; None where a broker has answered.
    registered: Collection[int] | None = None

    def is_leaderless(self, partition: TopicPartition) -> bool:
        """Whether the partition exists, and no broker leads it (since 0.8)."""
        known = self.topics.get(partition.topic, {}).get(partition.partition)
        return known is not None and known.leader is None

    def furthest(self, partition: TopicPartition) -> int | None:
        """The committed offset at which the group stands, the larger one of two stores."""
        found = [one for one in (self.snapshot.committed(partition), self.kept.get(partition)) if one is not None]
        return max(found, default=None)

    def held_back(self, partition: TopicPartition) -> OpenTransaction | None:
        """The open transaction at whose beginning the group stands: so do readers of committed messages."""
        transaction, known = self.transactions.get(partition), self.ranges.get(partition)
        if transaction is None or not isinstance(known, LogRange):
            return None
        offset = self.furthest(partition)
        return transaction if transaction.start == (known.earliest if offset is None else offset) else None


def outage_findings(inputs: DiagnosisInput) -> Iterable[GroupFinding]:
    """The finding that there is no broker, or that none answers, which explains most of the others."""
    if inputs.registered is None:
        return
    if not inputs.registered:
        yield GroupFinding(
            GroupFindingKind.NO_BROKERS,
            broker_ids_path(),
            "No broker is registered in ZooKeeper: nothing can be produced or consumed, and the lag is unknown.",
            "Start the brokers. If they run, check that they and this command use the same ZooKeeper and chroot.",
        )
        return
    asked = [answer for partition, answer in inputs.ranges.items() if not inputs.is_leaderless(partition)]
    if asked and all(isinstance(answer, LookupFailure) for answer in asked):
        reason = next(answer.reason for answer in asked if isinstance(answer, LookupFailure))
        yield GroupFinding(
            GroupFindingKind.NO_BROKERS,
            f"brokers {listed(sorted(inputs.registered))}",
            f"No registered broker answers: {reason}. From here nothing can be consumed, and the lag is unknown.",
            "Check that the brokers run, and that they can be reached from here.",
        )


def offset_findings(inputs: DiagnosisInput) -> Iterable[GroupFinding]:
    """Findings about every committed offset; one of two offsets in the log is enough."""
    snapshot = inputs.snapshot
    for subject, fault in snapshot.offset_faults(read=True).items():
        yield GroupFinding(
            GroupFindingKind.BROKEN_OFFSET,
            subject,
            f"{capital(fault)}. A JVM member that should own the partition fails on it.",
            "`consumerd offsets set` while the group is stopped.",
        )
    for partition, offset in snapshot.committed_offsets().items():
        known, also = inputs.ranges.get(partition), inputs.kept.get(partition)
        if also is not None and isinstance(known, LogRange) and known.earliest <= also <= known.end:
            continue
        finding = _offset_finding(snapshot, partition, offset, known)
        if finding is not None:
            yield finding


def former_log_findings(inputs: DiagnosisInput) -> Iterable[GroupFinding]:
    """Offsets that were committed before their topic was created: they count messages of another log (since 0.8)."""
    snapshot = inputs.snapshot
    for partition, offset in snapshot.view.offsets.items() if inputs.created else ():
        stat = snapshot.view.stats.get(offset_path(snapshot.group, partition))
        created = inputs.created.get(partition.topic)
        if stat is None or created is None or stat.modified_zxid >= created or not snapshot.exists(partition):
            continue
        known = inputs.ranges.get(partition)
        beginning = known.earliest if isinstance(known, LogRange) else None
        if offset == beginning:
            continue
        at = "" if beginning is None else f", {beginning}"
        fix = None
        if beginning is not None and not snapshot.view.members:  # a member would overwrite it with its own position
            fix = OffsetReset(offset_path(snapshot.group, partition), stat.version, offset, beginning)
        yield _former_log(
            partition,
            f"Offset {offset} was committed by transaction {stat.modified_zxid:#x}, before transaction {created:#x} "
            f"created {topic_path(partition.topic)}",
            f"{at} (fetch.log_changed); a JVM member would start at {offset}",
            fix,
        )


def _former_log(
    partition: TopicPartition,
    says: str,
    then: str = " (fetch.log_changed); other clients would start at the offset",
    fix: OffsetReset | None = None,
) -> GroupFinding:
    return GroupFinding(
        GroupFindingKind.FORMER_LOG,
        str(partition),
        f"{says}: it belongs to a former log of this name. consumerd continues at the beginning of the new log{then} "
        "and skip what is before it.",
        f"{_RESET}, with --to earliest.",
        fix,
    )


def former_topic_findings(inputs: DiagnosisInput) -> Iterable[GroupFinding]:
    """Offsets whose metadata name another topic id than the topic has: it was created again."""
    snapshot = inputs.snapshot
    for partition in snapshot.metadata:
        former, now = snapshot.log(partition), LogId(inputs.topic_ids.get(partition.topic))
        if former.replaced_by(now) and snapshot.exists(partition):
            yield _former_log(
                partition,
                f"Offset {snapshot.committed(partition)} was committed for the topic with {former}, and the topic of "
                f"this name has {now}",
            )


def cut_off_findings(inputs: DiagnosisInput) -> Iterable[GroupFinding]:
    """Offsets whose leader epoch shows that the log has other messages before them, or none."""
    for partition, change in inputs.cut_off.items():
        committed = f"Offset {change.offset} was committed with leader epoch {change.former.leader_epoch}"
        if change.kind is LogChangeKind.REPLACED:
            what = "and the log does not have the message before it, though no later leader was elected"
            yield _former_log(partition, f"{committed}, {what}")
            continue
        if change.messages_gone is None:
            yield _parted_log(partition, committed, change)
            continue
        yield GroupFinding(
            GroupFindingKind.TRUNCATED_LOG,
            str(partition),
            f"{committed}, and in the leader's log that epoch ends at {change.divergence}: the log was cut off there, "
            f"as by an unclean leader election, and {change.messages_gone} messages that the group had read are gone. "
            f"consumerd continues at {change.divergence} (fetch.log_changed); a client that does not compare leader "
            "epochs would start at the offset and skip what was written since.",
            f"For such clients, `consumerd offsets set` to {change.divergence} while the group is stopped. Producers "
            "may have to send what is gone again; unclean.leader.election.enable=false prevents this.",
        )


def _parted_log(partition: TopicPartition, committed: str, change: LogChange) -> GroupFinding:
    """The log is that of a former leader: where it parts from the one that was read is not known."""
    return GroupFinding(
        GroupFindingKind.TRUNCATED_LOG,
        str(partition),
        f"{committed}, and the leader's log has no message of that epoch, but others up to the offset: it is another "
        "replica's, as after an unclean leader election, and the group may not have read what it has before the "
        f"offset. consumerd continues at {change.divergence} (fetch.log_changed).",
        "To read what may have been passed over, `consumerd offsets set` to an earlier offset while the group is "
        "stopped, or `consumerd offsets reset`; unclean.leader.election.enable=false prevents this.",
    )


def inside_findings(inputs: DiagnosisInput) -> Iterable[GroupFinding]:
    """Offsets of 0.7 that are not the start of a message."""
    for partition, start in inputs.inside.items():
        yield GroupFinding(
            GroupFindingKind.INSIDE_MESSAGE,
            str(partition),
            f"Offset {inputs.snapshot.committed(partition)} is {inside_words(start)}, so nothing can be read from "
            "there: the broker's log is another one, or the offset was not written by a member.",
            f"`consumerd offsets set` to {start}, or {_RESET}.",
        )


def inside_words(start: int) -> str:
    """What is wrong with an offset that is not the start of a message, after "is"."""
    return f"inside a message that begins at {start}"


def silence_findings(inputs: DiagnosisInput) -> Iterable[GroupFinding]:
    """Registered brokers that did not answer (0.7), or why brokers did not (since 0.8)."""
    silent: Counter[tuple[str, str]] = Counter()
    for partition, answer in inputs.ranges.items():
        if not isinstance(answer, LookupFailure) or inputs.is_leaderless(partition):
            continue
        if partition.broker == NO_BROKER:
            silent["brokers", answer.reason] += 1
        elif inputs.registered and partition.broker in inputs.registered:
            silent[f"broker {partition.broker}", answer.reason] += 1
    for (subject, reason), count in silent.items():
        yield GroupFinding(
            GroupFindingKind.SILENT_BROKER,
            subject,
            f"The offsets of {count} partitions could not be checked: {reason}.",
            "Check that the broker runs and can be reached from here.",
        )


def unread_findings(inputs: DiagnosisInput) -> Iterable[GroupFinding]:
    """What of the group could not be read, beside nodes with a fault, of which each has a finding of its own."""
    view = inputs.snapshot.view
    # Each fault has one sentence among the problems, and comes first.
    for problem in (*view.problems[len(view.faults) :], *inputs.unknown):
        yield GroupFinding(
            GroupFindingKind.NOT_CHECKED,
            view.group,
            f"{capital(problem)}.",
            "Findings that depend on it are missing here.",
        )


def _offset_finding(
    snapshot: GroupSnapshot, partition: TopicPartition, offset: int, known: LogRange | LookupFailure | None
) -> GroupFinding | None:
    if not snapshot.exists(partition):
        return GroupFinding(
            GroupFindingKind.NO_PARTITION,
            str(partition),
            f"Offset {offset} is committed, but {snapshot.absence(partition)}.",
            _KEEP_07 if snapshot.dialect is Dialect.V07 else _KEEP,
        )
    if not isinstance(known, LogRange) or known.earliest <= offset <= known.end:
        return None
    unit = snapshot.unit
    if offset < known.earliest:
        missing = known.earliest - offset
        says = f"is {missing} {unit} before the log start {known.earliest}: retention deleted unread messages"
    else:
        says = f"is {offset - known.end} {unit} beyond the log end {known.end}: the log was lost or truncated"
    reset = "autooffset.reset" if snapshot.dialect is Dialect.V07 else "auto.offset.reset"
    return GroupFinding(
        GroupFindingKind.OUT_OF_RANGE,
        str(partition),
        f"Offset {offset} {says}. A member that starts there follows its policy: {reset}, fetch.out_of_range.",
        f"Choose where to continue: {_RESET}.",
    )
