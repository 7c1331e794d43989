from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumerd.base.partition import TopicPartition
from consumerd.demo.audit import (
    AuditRecord,
    AuditResult,
    audit,
    merge_records,
    parse_record,
    read_records,
)
from consumerd.demo.errors import AuditError
from consumerd.demo.ledger import Ledger, PartitionLedger, digest
from consumerd.wire.compression import compress
from consumerd.wire.v07 import Codec, encode_message, encode_message_set
from tests.support.awakenings import Awakening, Caught

P = TopicPartition("t", 0, 0)
Q = TopicPartition("t", 1, 3)
#: Equal lines are different messages.
LINES = [b"same", b"same", b"", b"\xff", b"last"]


def ledger(partition: TopicPartition = P) -> Ledger:
    """A plain message, a wrapper of three, a plain one."""
    found = Ledger()
    one = found.partition(partition)
    one.send(LINES)
    one.store(0, LINES[:1])
    one.store(14, LINES[1:4])
    one.store(80, LINES[4:])
    return found


IDENTITIES = [(0, 0), (14, 0), (14, 1), (14, 2), (80, 0)]
MESSAGES = [(offset, index, digest(line)) for (offset, index), line in zip(IDENTITIES, LINES, strict=True)]


class Story:
    """Makes records in the order of time."""

    def __init__(self) -> None:
        self.records: list[AuditRecord] = []

    def claim(self, member: str, partition: TopicPartition = P) -> Story:
        return self._add(member, partition, True, [])

    def hand(self, member: str, *numbers: int, partition: TopicPartition = P) -> Story:
        return self._add(member, partition, False, [MESSAGES[number] for number in numbers])

    def hand_raw(self, member: str, *messages: tuple[int, int, int]) -> Story:
        return self._add(member, P, False, list(messages))

    def _add(self, member: str, partition: TopicPartition, claim: bool, messages: list[tuple[int, int, int]]) -> Story:
        sequence = sum(record.member == member for record in self.records)
        self.records.append(AuditRecord(float(len(self.records)), member, sequence, partition, claim, messages))
        return self

    def counts(self, held: Ledger | None = None) -> dict[str, int]:
        """The counters that are not 0, but for those of plain progress."""
        result = audit(held or ledger(), self.records)
        assert result.handled == sum(len(record.messages) for record in self.records)
        assert bool(result.findings) is not result.sound
        names = ("duplicated", "lost", "out_of_order", "corrupted", "overlapping")
        return {name: getattr(result, name) for name in names if getattr(result, name)}


def test_accepts_messages_delivered_once_in_order() -> None:
    story = Story().claim("a").hand("a", 0, 1).hand("a", 2, 3, 4)
    assert story.counts() == {}
    assert audit(ledger(), story.records) == AuditResult(produced=5, handled=5, distinct=5)


def test_counts_messages_never_delivered_as_lost() -> None:
    assert Story().counts() == {"lost": 5}
    assert Story().claim("a").hand("a", 0, 1, 3, 4).counts() == {"lost": 1}


def test_counts_repetition_after_a_takeover_as_duplicated() -> None:
    assert Story().claim("a").hand("a", 0, 1, 2).claim("b").hand("b", 1, 2, 3, 4).counts() == {"duplicated": 2}


def test_counts_repetition_after_a_restart_as_duplicated() -> None:
    assert Story().claim("a").hand("a", 0, 1, 2).claim("a").hand("a", 0, 1, 2, 3, 4).counts() == {"duplicated": 3}


def test_counts_a_step_back_within_one_ownership_as_out_of_order() -> None:
    assert Story().claim("a").hand("a", 0, 2, 1, 3, 4).counts() == {"out_of_order": 1}
    assert Story().claim("a").hand("a", 0, 1).hand("a", 1, 2, 3, 4).counts() == {"out_of_order": 1, "duplicated": 1}


def test_counts_another_payload_as_corrupted() -> None:
    changed = (14, 1, digest(b"x"))
    story = Story().claim("a").hand("a", 0, 1).hand_raw("a", changed).hand("a", 3, 4)
    assert story.counts() == {"corrupted": 1}


def test_counts_an_unknown_identity_as_corrupted() -> None:
    story = Story().claim("a").hand("a", 0, 1, 2, 3).hand_raw("a", (14, 3, digest(b"")), (15, 0, 0)).hand("a", 4)
    assert story.counts() == {"corrupted": 2}


def test_counts_messages_of_an_empty_partition_as_corrupted() -> None:
    story = Story().claim("a").hand("a", *range(5)).claim("a", Q).hand("a", 0, 1, partition=Q)
    assert story.counts() == {"corrupted": 2}


def test_counts_a_handover_after_another_claim_as_overlapping() -> None:
    story = Story().claim("a").hand("a", 0).claim("b").hand("a", 1, 2).hand("b", 1, 2, 3, 4)
    assert story.counts() == {"overlapping": 2, "duplicated": 2}
    assert Story().hand("a", *range(5)).counts() == {"overlapping": 5}  # without any claim


def test_excuses_one_batch_each_time_a_member_wakes_up() -> None:
    # The records are at 0, 1, 2 ...; a wakes before 3, and the batch that it delivers there was in flight.
    story = Story().claim("a").hand("a", 0).claim("b").hand("a", 1).hand("b", 1, 2, 3, 4)
    assert audit(ledger(), story.records, Caught([Awakening("a", 2.5, 0.0)]).excuses).sound
    assert audit(ledger(), story.records, Caught([Awakening("b", 2.5, 0.0)]).excuses).overlapping == 1
    assert audit(ledger(), story.records, Caught([Awakening("a", 3.5, 0.0)]).excuses).overlapping == 1
    assert (
        audit(ledger(), story.records, Caught([Awakening("a", 0.5, 0.0)]).excuses).overlapping == 1
    )  # that one was delivered at 1
    story = Story().claim("a").hand("a", 0).claim("b").hand("a", 1).hand("a", 2).hand("b", 1, 2, 3, 4)
    result = audit(ledger(), story.records, Caught([Awakening("a", 2.5, 0.0)]).excuses)
    assert (result.overlapping, result.distinct, result.handled) == (1, 5, 7)  # the second is not, and all count
    assert audit(ledger(), story.records, Caught([Awakening("a", 3.5, 0.0), Awakening("a", 2.5, 0.0)]).excuses).sound


def test_excuses_no_batch_after_a_claim_at_wake_up() -> None:
    caught = Caught([Awakening("a", 0.5, 0.0)])
    story = Story().claim("a").claim("a").hand("a", 0)
    assert [caught.excuses(record) for record in story.records] == [False, False, False]


def test_reports_a_log_that_differs_from_the_input() -> None:
    held = ledger()
    held.partition(P).send([b"never stored"])
    assert Story().claim("a").hand("a", *range(5)).counts(held) == {"lost": 1}
    held = ledger()
    held.partition(P).store(100, [b"never sent"])
    story = Story().claim("a").hand("a", *range(5)).hand_raw("a", (100, 0, digest(b"never sent")))
    assert story.counts(held) == {"corrupted": 2}  # once in the log, once delivered
    held = Ledger()
    held.partition(P).send([b"a"])
    held.partition(P).store(0, [b"b"])
    assert Story().claim("a").hand_raw("a", (0, 0, digest(b"b"))).counts(held) == {"corrupted": 2}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 5))))
def test_handovers_from_committed_positions_are_always_sound(takeovers: list[tuple[str, int, int]]) -> None:
    """Members take over again and again, each continuing at or before the end of the last one."""
    story, reached, expected = Story(), 0, 0
    for member, back, count in [*takeovers, ("d", 5, 10)]:
        start = max(0, reached - back)
        end = min(len(LINES), start + count)
        story.claim(member).hand(member, *range(start, end))
        expected += min(end, reached) - start
        reached = max(reached, end)
    assert story.counts() == ({"duplicated": expected} if expected else {})


@given(st.permutations(range(5)))
def test_finds_every_disorder_within_one_ownership(order: list[int]) -> None:
    backwards = sum(after < before for before, after in itertools.pairwise(order))
    assert Story().claim("a").hand("a", *order).counts() == ({"out_of_order": backwards} if backwards else {})


def line(record: AuditRecord) -> bytes:
    fields = {
        "at": record.at, "member": record.member, "sequence": record.sequence, "topic": record.partition.topic,
        "broker": record.partition.broker, "partition": record.partition.partition, "claim": record.claim,
        "messages": [(offset, index, f"{found:016x}") for offset, index, found in record.messages],
    }  # fmt: skip
    return json.dumps(fields).encode() + b"\n"


def test_merges_record_files_by_time(tmp_path: Path) -> None:
    story = Story().claim("a").hand("a", 0, 1).claim("b").hand("b", 1, 2, 3, 4)
    for member in "ab":
        text = b"".join(line(record) for record in story.records if record.member == member)
        (tmp_path / member).write_bytes(text)
    with (tmp_path / "a").open("ab") as file:
        file.write(line(AuditRecord(9.0, "a", 2, P, False, []))[:-1])  # torn by a kill: it does not count
    assert list(merge_records([tmp_path / "b", tmp_path / "a"])) == story.records


def test_rejects_a_missing_or_broken_record(tmp_path: Path) -> None:
    records = Story().claim("a").hand("a", 0).hand("a", 1).records
    (tmp_path / "a").write_bytes(line(records[0]) + line(records[2]))
    with pytest.raises(AuditError, match="jumps from record 0 to 2"):
        list(read_records(tmp_path / "a"))
    endless = b'{"at":1,"member":"a","sequence":Infinity}'
    for text in (b"{}", b"[]", b"null", b"\xff", b'{"at":1,"member":"a","sequence":"x"}', endless, b"[" * 100_000):
        with pytest.raises(AuditError, match="is not a valid handover record"):
            parse_record(text)


def test_ledger_reads_logs_of_a_broker(tmp_path: Path) -> None:
    sets = [
        encode_message(b"plain"),
        encode_message_set([b"", b"\xff", b"z" * 100], codec=Codec.GZIP),
        encode_message(compress(Codec.SNAPPY, b""), codec=Codec.SNAPPY),  # a wrapper without leaves
        encode_message_set([b"s", b"s"], codec=Codec.SNAPPY),
        encode_message(b"old", magic=0),
    ]
    folder = tmp_path / "t-0"
    folder.mkdir()
    first = b"".join(sets[:2])
    (folder / f"{0:020}.kafka").write_bytes(first)
    (folder / f"{len(first):020}.kafka").write_bytes(b"".join(sets[2:]))
    found = Ledger()
    found.read_log(tmp_path, P)
    one = found.partition(P)
    one.send([b"plain", b"", b"\xff", b"z" * 100, b"s", b"s", b"old"])
    assert (one.held, one.changed()) == (7, 0)
    wrapper = len(sets[0])
    assert [one.position(wrapper, index) for index in (-1, 0, 1, 2, 3)] == [None, 1, 2, 3, None]
    assert one.position(wrapper + 1, 0) is None
    assert one.position(len(first), 0) is None
    assert one.position(len(first) + len(sets[2]), 1) == 5
    found.read_log(tmp_path, Q)  # no folder: nothing is held
    assert found.partition(Q).held == 0


def test_rejects_a_damaged_log(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    (folder / f"{0:020}.kafka").write_bytes(encode_message(b"whole") + b"torn")
    with pytest.raises(AuditError, match="is damaged"):
        Ledger().read_log(tmp_path, P)


def test_rejects_log_offsets_that_do_not_increase() -> None:
    one = PartitionLedger()
    one.store(0, [b"a"])
    with pytest.raises(AuditError, match="from 0 to 0"):
        one.store(0, [b"b"])
