"""The result for each message of a long run: counted by ranges, with the rules of `tests.torture.account`.

Strategy: the log at the end is the truth, as in torture. It is kept as in `tests.torture.sinks`, so an identity is
found by bisection, the content of any range is compared in one subtraction, and an hour takes tens of bytes a message.
"""

from __future__ import annotations

import heapq
import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from consumerd.base.partition import TopicPartition
from consumerd.demo.audit import AuditRecord, AuditResult
from consumerd.storage.log.dump import read_segment
from consumerd.testing.brokers import segments_of
from tests.soak.stage import LINES, SoakStage, lines_of, number_of
from tests.support.awakenings import Caught
from tests.torture.account import Account, expiries, explains
from tests.torture.play import Cause
from tests.torture.sinks import PartitionLog

_EXAMPLES: Final = 5


@dataclass(slots=True)
class Contents:
    """All logs, and what was found out while they were read."""

    logs: dict[TopicPartition, PartitionLog] = field(default_factory=dict)
    stored: int = 0
    #: Messages that were never sent, or not like this.
    foreign: int = 0
    #: Confirmed messages that no log holds.
    missing: int = 0


def read_logs(stage: SoakStage) -> Contents:
    """Read all logs and compare them with what was sent."""
    found = Contents()
    held = array("H", bytes(2 * len(stage.confirmed)))
    for partition in stage.partitions:
        log = found.logs[partition] = PartitionLog()
        folder = stage.broker.log_directory / f"{partition.topic}-{partition.partition}"
        for path, start in segments_of(folder):
            number, lines = -1, []
            for entry in read_segment(path, start):
                if not entry.valid:  # a torn end is cut off at the broker's next start
                    continue
                log.append(entry.offset, entry.payloads)
                for payload in entry.payloads:
                    batch = -1
                    try:
                        batch, line = number_of(payload)
                        if batch != number:
                            number, lines = batch, lines_of(batch)
                        ours = batch < len(stage.confirmed) and lines[line] == payload
                    except (ValueError, IndexError):
                        ours = False
                    if ours:
                        held[batch] += 1
                    else:
                        found.foreign += 1
        found.stored += len(log)
    found.missing = sum(
        LINES - min(LINES, count) for count, sure in zip(held, stage.confirmed, strict=True) if sure and count < LINES
    )
    return found


class RangeRecord(NamedTuple):
    """One line of a record file of `RangeRecordHandler`."""

    at: float
    member: str
    partition: TopicPartition
    claim: bool
    first: tuple[int, int]
    messages: int
    checksum: int


def read_ranges(path: Path) -> Iterator[RangeRecord]:
    """The records of a file. A last line without its end is left out: its batch was never confirmed.

    Raises ValueError when one is missing in the middle.
    """
    expected = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            fields: Mapping[str, Any] = json.loads(line)
            if fields["sequence"] != expected:
                raise ValueError(f"{path} jumps from record {expected - 1} to {fields['sequence']}")
            expected += 1
            offset, index = fields.get("first", (0, 0))
            yield RangeRecord(
                fields["at"],
                fields["member"],
                TopicPartition(fields["topic"], fields["broker"], fields["partition"]),
                fields.get("claim", False),
                (offset, index),
                fields.get("count", 0),
                fields.get("sum", 0),
            )


class _Deliveries:
    """The check of one partition, record by record in the order of time."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.seen = bytearray(len(log))
        #: The number of the record that had each message last.
        self.last = array("L", bytes(array("L").itemsize * len(log)))
        self.owner: str | None = None
        self.reached: dict[str, int] = {}


def check_deliveries(
    contents: Contents, records: Iterable[RangeRecord], causes: Sequence[Cause], caught: Caught, account: Account
) -> None:
    """Count deliveries in `account` and its audit; records in the order of time."""
    audit = account.audit
    partitions = {partition: _Deliveries(log) for partition, log in contents.logs.items()}
    had: list[tuple[float, str]] = []
    for record in records:
        excused = caught.excuses(AuditRecord(record.at, record.member, 0, record.partition, record.claim, []))
        state = partitions[record.partition]
        if record.claim:
            state.owner = record.member
            state.reached[record.member] = 0
            continue
        first = state.log.number(*record.first)
        end = None if first is None else first + record.messages
        audit.handled += record.messages
        if first is None or end is None or end > len(state.log) or state.log.sum(first, end) != record.checksum:
            audit.corrupted += record.messages
            audit.find(f"{record} is not what the log holds")
            continue
        if state.owner != record.member and not excused:
            audit.overlapping += record.messages
            audit.find(f"{record.member} was handed {record.partition} {record.first} after {state.owner} claimed it")
        if first < state.reached.get(record.member, 0):
            audit.out_of_order += record.messages
            audit.find(f"{record} goes back within one ownership")
        state.reached[record.member] = end
        if (repeated := state.seen.count(1, first, end)) > 0:
            if excused:  # the next owner has had this batch while its member stood still
                account.repeated_within += repeated
            else:
                _classify_repeated(record, state, first, had, causes, account)
            audit.duplicated += repeated
        state.seen[first:end] = b"\x01" * record.messages
        state.last[first:end] = array("L", [len(had)]) * record.messages
        had.append((record.at, record.member))
    for partition, state in partitions.items():
        audit.distinct += state.seen.count(1)
        if missed := state.seen.count(0):
            audit.lost += missed
            audit.find(f"{missed} messages of {partition} were never delivered, the first is {state.seen.find(0)}")


def _classify_repeated(
    record: RangeRecord,
    state: _Deliveries,
    first: int,
    had: list[tuple[float, str]],
    causes: Sequence[Cause],
    account: Account,
) -> None:
    explained: dict[int, bool] = {}
    for number in range(first, first + record.messages):
        if not state.seen[number]:
            continue
        before = state.last[number]
        if before not in explained:
            at, member = had[before]
            explained[before] = any(explains(cause, member, at, record.at) for cause in causes)
            if not explained[before] and len(account.findings) < _EXAMPLES:
                account.findings.append(
                    f"{record.partition} message {number}: {member} had it at {at:.2f}, {record.member} again at "
                    f"{record.at:.2f}"
                )
        if explained[before]:
            account.repeated_within += 1
        else:
            account.repeated_beyond += 1


def count(stage: SoakStage, contents: Contents, causes: Sequence[Cause]) -> Account:
    """Count the deliveries of the main group. Blocks."""
    own = expiries(stage.members, stage.wall_to_monotonic, stage.group.lost_event)
    sure = stage.confirmed.count(1) * LINES
    account = Account(
        produced=stage.sent_messages,
        acknowledged=sure,
        stored=contents.stored,
        not_stored=contents.missing,
        foreign=contents.foreign,
        audit=AuditResult(produced=contents.stored),
    )
    account.count_expired_alone(own, causes)
    records = heapq.merge(*map(read_ranges, sorted(stage.records.glob("*.ndjson"))), key=attrgetter("at"))
    caught = Caught(each for member in stage.members for each in member.awakenings)
    check_deliveries(contents, records, [*causes, *own], caught, account)
    return account
