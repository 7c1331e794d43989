"""The result for each message: the audit of `consumerd.demo`, and which repetitions a fault explains.

Strategy: the broker's log at the end is the truth about what there was to deliver: a batch that was not confirmed may
be in it. So the ledger is made from the log, and apart from that every confirmed message has to be in the log.

A message may come again if the member that had it was killed, frozen or cut off from its coordinator, ZooKeeper or a
broker (docs/semantics.md), and had it at most a commit interval, and the time that a commit takes, before that; or
until its session could end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from consumerd.base.partition import TopicPartition
from consumerd.demo.audit import AuditRecord, AuditResult, audit, merge_records
from consumerd.demo.ledger import Ledger
from tests.support.awakenings import Caught
from tests.torture.play import Cause
from tests.torture.stage import COMMIT_INTERVAL, SESSION_TIMEOUT, Log, Member, Stage

#: What a commit takes at most on a busy machine, in seconds.
COMMIT_SECONDS: Final = 2.0
_EXAMPLES: Final = 5


@dataclass(slots=True)
class Account:
    """The counts of messages."""

    produced: int
    acknowledged: int
    stored: int
    #: Confirmed messages that the log does not hold.
    not_stored: int
    #: Messages of the log that were never sent.
    foreign: int
    audit: AuditResult
    repeated_within: int = 0
    repeated_beyond: int = 0
    #: Messages that the log holds again although they were sent once and the broker should have noticed.
    stored_twice: int = 0
    #: Sessions that ended although no fault concerned their member: the machine was too slow.
    expired_alone: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Messages of the log that nobody was handed, and confirmed ones that it does not hold."""
        return self.audit.lost + self.not_stored

    @property
    def complete(self) -> bool:
        """Whether every message of the log was delivered, and the log was read to its end.

        A new leader serves the last confirmed messages only when its followers have told it that they have them.
        """
        return self.audit.distinct == self.stored and not (self.not_stored or self.audit.corrupted)

    def count_expired_alone(self, ends: Sequence[Cause], causes: Sequence[Cause]) -> None:
        """Count the ends of sessions that no fault explains."""
        self.expired_alone = sum(
            not any(
                c.member in (None, e.member) and c.begin <= e.end and e.begin <= c.end + SESSION_TIMEOUT for c in causes
            )
            for e in ends
        )


def ledger_of(log: Log) -> tuple[Ledger, list[bytes]]:
    """The log as a ledger in which each message is as it was sent, and all payloads."""
    ledger, payloads = Ledger(), []
    for partition, messages in log.items():
        each = ledger.partition(partition)
        for offset, leaves in messages:
            each.send(leaves)
            each.store(offset, leaves)
            payloads += leaves
    return ledger, payloads


def expiries(members: Sequence[Member], to_monotonic: Callable[[float], float], name: str) -> list[Cause]:
    """The ends of sessions that members logged as events of this name."""
    found = []
    for member in members:
        for event in member.events():
            if event["event"] == name:
                at = to_monotonic(datetime.fromisoformat(event["timestamp"]).timestamp())
                found.append(Cause(member.consumer_id, at - SESSION_TIMEOUT, at, name))
    return found


def explains(cause: Cause, member: str, first: float, again: float) -> bool:
    """Whether a message that `member` had at `first` may have come again at `again` because of `cause`."""
    if cause.member not in (None, member) or again < cause.begin:
        return False
    return cause.begin - COMMIT_INTERVAL - COMMIT_SECONDS <= first <= cause.end + SESSION_TIMEOUT


def classify(records: Iterable[AuditRecord], causes: Sequence[Cause], caught: Caught, account: Account) -> None:
    """Count the repetitions that causes explain, and those that they do not. `records` in the order of time.

    A batch that was under way while its member stood still comes again if the next owner has had it meanwhile.
    """
    last: dict[tuple[TopicPartition, int, int], tuple[float, str]] = {}
    for record in records:
        excused = caught.excuses(record)
        for offset, index, _ in record.messages:
            place = (record.partition, offset, index)
            if (before := last.get(place)) is not None:
                at, member = before
                if excused or any(explains(cause, member, at, record.at) for cause in causes):
                    account.repeated_within += 1
                else:
                    account.repeated_beyond += 1
                    if len(account.findings) < _EXAMPLES:
                        account.findings.append(
                            f"{record.partition} {offset}/{index}: {member} had it at {at:.2f}, {record.member} again "
                            f"at {record.at:.2f}"
                        )
            last[place] = (record.at, record.member)


def count(stage: Stage, log: Log, causes: Sequence[Cause]) -> Account:
    """Count everything. Blocks for seconds."""
    ledger, payloads = ledger_of(log)
    in_log = set(payloads)
    awakenings = [each for member in stage.members for each in member.awakenings]
    paths = sorted(stage.records.glob("*.ndjson"))
    own = expiries(stage.members, stage.wall_to_monotonic, stage.group.lost_event)
    account = Account(
        produced=len(stage.sent),
        acknowledged=len(stage.acknowledged),
        stored=len(payloads),
        not_stored=len(stage.acknowledged - in_log),
        foreign=len(in_log - stage.sent),
        audit=audit(ledger, merge_records(paths), Caught(awakenings).excuses),
        stored_twice=len(payloads) - len(in_log) if stage.stores_once else 0,
    )
    account.count_expired_alone(own, causes)
    classify(merge_records(paths), [*causes, *own], Caught(awakenings), account)
    if account.repeated_within + account.repeated_beyond != account.audit.duplicated:
        raise AssertionError("repetitions were counted in two ways that differ")
    return account
