"""Count the result of every message: lost, duplicated, out of order, corrupted, delivered by two members.

Strategy: handovers are counted by message identity (topic, broker, partition, offset of the outermost message, index),
never by text: equal lines are different messages. The record files of all members are merged in the order of time and
read once. One *ownership* of a partition lasts from a member's claim to the next claim by anyone: within it
identities have to grow; a message that comes again in a later one (after a takeover or a restart, from the committed
offset) is a duplicate, not out of order.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from consumerd.base.partition import TopicPartition
from consumerd.demo.errors import AuditError

if TYPE_CHECKING:
    from consumerd.demo.ledger import Ledger, PartitionLedger

#: The number of findings that are described in words.
_EXAMPLES: Final = 10


class AuditRecord(NamedTuple):
    """One line of a record file. `messages` are (offset, index, digest); a claim has none."""

    at: float
    member: str
    sequence: int
    partition: TopicPartition
    claim: bool
    messages: list[tuple[int, int, int]]


def parse_record(line: bytes) -> AuditRecord:
    """A line that `RecordHandler` wrote. Raises AuditError for anything else."""
    try:
        fields: Mapping[str, Any] = json.loads(line)
        return AuditRecord(
            float(fields["at"]),
            str(fields["member"]),
            int(fields["sequence"]),
            TopicPartition(str(fields["topic"]), int(fields["broker"]), int(fields["partition"])),
            bool(fields.get("claim", False)),
            [(int(offset), int(index), int(text, 16)) for offset, index, text in fields.get("messages", ())],
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise AuditError(f"{line[:80]!r} is not a valid handover record: {error!r}") from error


def read_records(path: Path) -> Iterator[AuditRecord]:
    """The records of one file. A last line without its end is left out: its batch was never confirmed.

    Raises AuditError when a line is invalid, or missing in the middle.
    """
    expected = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            record = parse_record(line)
            if record.sequence != expected:
                raise AuditError(f"{path} jumps from record {expected - 1} to {record.sequence}: records are missing")
            expected += 1
            yield record


def merge_records(paths: Iterable[Path]) -> Iterator[AuditRecord]:
    """The records of several members in the order of time. Raises AuditError as `read_records`."""
    return heapq.merge(*map(read_records, paths), key=attrgetter("at"))


@dataclass(slots=True)
class AuditResult:
    """The counts. `sound`: nothing is wrong; `findings`: the first faults in words."""

    #: Lines of the input that were sent.
    produced: int = 0
    #: Messages delivered, each time counted.
    handled: int = 0
    #: Different messages delivered at least once.
    distinct: int = 0
    #: Deliveries of messages beyond their first.
    duplicated: int = 0
    #: Lines that are not in the log, or never delivered.
    lost: int = 0
    #: Handovers that went back, or stood still, within one ownership.
    out_of_order: int = 0
    #: Deliveries that are not the line that was sent, and messages in the log that are not.
    corrupted: int = 0
    #: Handovers by a member after another one had claimed the partition.
    overlapping: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Nothing lost, out of order, corrupted or delivered by two members. Duplicates are allowed: at least once."""
        return not (self.lost or self.out_of_order or self.corrupted or self.overlapping)

    def find(self, text: str) -> None:
        """Keep a finding in words, as long as there are few."""
        if len(self.findings) < _EXAMPLES:
            self.findings.append(text)


class _Partition:
    """The state of the check of one partition."""

    __slots__ = ("ledger", "owner", "reached", "seen")

    def __init__(self, ledger: PartitionLedger) -> None:
        self.ledger = ledger
        self.seen = bytearray(ledger.held)
        self.owner: str | None = None
        #: (offset, index) of the last handover of each member since its claim: one that lost its partition to another
        #: and continues is overlapping, and out of order only if it goes back itself.
        self.reached: dict[str, tuple[int, int]] = {}


def audit(
    ledger: Ledger, records: Iterable[AuditRecord], excuses: Callable[[AuditRecord], bool] = lambda _: False
) -> AuditResult:
    """Check handovers, in the order of time, against the sent lines and the content of the logs.

    `excuses`: whether a delivery may come after another member's claim; called once for each record.
    """
    result = AuditResult()
    partitions = {name: _Partition(each) for name, each in ledger.partitions.items()}
    for record in records:
        excused = excuses(record)
        partition = partitions.get(record.partition)
        if partition is None:
            result.handled += len(record.messages)
            result.corrupted += len(record.messages)
            result.find(f"{record.member} was handed {record.partition}, which nothing was sent to")
        elif record.claim:
            partition.owner = record.member
            partition.reached.pop(record.member, None)
        else:
            _check_handover(result, partition, record, excused=excused)
    for name, partition in partitions.items():
        _check_partition(result, name, partition)
    return result


def _check_handover(result: AuditResult, partition: _Partition, record: AuditRecord, *, excused: bool) -> None:
    member, ledger = record.member, partition.ledger
    result.handled += len(record.messages)
    if partition.owner != member and record.messages and not excused:
        result.overlapping += len(record.messages)
        result.find(f"{member} was handed messages of {record.partition}, which {partition.owner} had claimed")
    last = partition.reached.get(member, (-1, -1))
    for offset, index, payload_digest in record.messages:
        if (offset, index) <= last:
            result.out_of_order += 1
            result.find(f"{member} was handed {record.partition} {offset}/{index} after {last[0]}/{last[1]}")
        last = (offset, index)
        position = ledger.position(offset, index)
        if position is None:
            result.corrupted += 1
            result.find(f"{member} was handed {record.partition} {offset}/{index}, which the log does not hold")
            continue
        if not ledger.is_input(position, payload_digest):
            result.corrupted += 1
            result.find(f"{member} was handed {record.partition} {offset}/{index} with another payload than was sent")
        if partition.seen[position]:
            result.duplicated += 1
        else:
            partition.seen[position] = 1
            result.distinct += 1
    partition.reached[member] = last


def _check_partition(result: AuditResult, name: TopicPartition, partition: _Partition) -> None:
    ledger = partition.ledger
    result.produced += ledger.sent
    if changed := ledger.changed():
        result.corrupted += changed
        result.find(f"{changed} messages that {name} holds are not the lines that were sent in their place")
    if absent := max(0, ledger.sent - ledger.held):
        result.lost += absent
        result.find(f"{absent} lines that were sent to {name} are not in its log")
    if missed := partition.seen.count(0):
        result.lost += missed
        result.find(f"{missed} messages of {name} were never delivered, the first at position {partition.seen.find(0)}")
