"""The count of a long run finds what is lost, repeated, changed, out of order, or with another owner."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

import pytest

from consumerd.base.partition import TopicPartition
from consumerd.demo.audit import AuditResult
from tests.soak.account import Contents, RangeRecord, check_deliveries
from tests.support.awakenings import Awakening, Caught
from tests.torture.account import Account
from tests.torture.play import Cause
from tests.torture.sinks import PartitionLog, RowCheck

P = TopicPartition("t", 0, 0)
#: Messages of a log by offset: one compressed message of three, one of none, and two single ones.
SETS = {0: [b"a", b"b", b"c"], 50: [], 60: [b"d"], 70: [b"e"]}
ALL = [b"a", b"b", b"c", b"d", b"e"]
PLACES = [(0, 0), (0, 1), (0, 2), (60, 0), (70, 0)]


@pytest.fixture
def contents() -> Contents:
    log = PartitionLog()
    for offset, payloads in SETS.items():
        log.append(offset, payloads)
    return Contents({P: log}, stored=len(log))


def claim(at: float, member: str) -> RangeRecord:
    return RangeRecord(at, member, P, True, (0, 0), 0, 0)


def batch(at: float, member: str, first: int, end: int) -> RangeRecord:
    return RangeRecord(at, member, P, False, PLACES[first], end - first, sum(map(crc32, ALL[first:end])))


def counted(
    contents: Contents,
    records: Iterable[RangeRecord],
    causes: Iterable[Cause] = (),
    awakenings: Iterable[Awakening] = (),
) -> Account:
    account = Account(5, 5, contents.stored, 0, 0, AuditResult(produced=contents.stored))
    check_deliveries(contents, records, list(causes), Caught(awakenings), account)
    return account


def test_messages_have_the_numbers_of_the_log(contents: Contents) -> None:
    log = contents.logs[P]
    assert [log.number(*place) for place in PLACES] == [0, 1, 2, 3, 4]
    assert [log.number(*place) for place in [(0, 3), (50, 0), (60, 1), (65, 0), (71, 0)]] == [None] * 5


def test_all_delivered_once_is_sound(contents: Contents) -> None:
    account = counted(contents, [claim(1, "m"), batch(2, "m", 0, 2), batch(3, "m", 2, 4), batch(4, "m", 4, 5)])
    assert account.audit.sound
    assert account.complete
    assert (account.audit.handled, account.audit.duplicated) == (5, 0)


def test_counts_lost_messages(contents: Contents) -> None:
    account = counted(contents, [claim(1, "m"), batch(2, "m", 0, 2), batch(3, "m", 3, 5)])
    assert (account.lost, account.complete) == (1, False)
    assert "the first is 2" in account.audit.findings[0]


def test_counts_repetitions_by_whether_a_fault_explains_them(contents: Contents) -> None:
    records = [claim(1, "m"), batch(20, "m", 0, 3), claim(30, "n"), batch(31, "n", 1, 5)]
    killed = Cause("m", 20.5, 20.5, "member_kill")
    assert counted(contents, records, [killed]).repeated_within == 2
    unexplained = counted(contents, records, [killed._replace(member="other")])
    assert (unexplained.repeated_within, unexplained.repeated_beyond) == (0, 2)
    assert unexplained.audit.duplicated == 2
    assert unexplained.lost == 0


def test_counts_changed_payloads(contents: Contents) -> None:
    changed = batch(2, "m", 0, 2)._replace(checksum=1)
    account = counted(contents, [claim(1, "m"), changed, batch(3, "m", 2, 5)])
    assert (account.audit.corrupted, account.lost) == (2, 2)


def test_counts_what_the_log_does_not_hold(contents: Contents) -> None:
    account = counted(contents, [claim(1, "m"), batch(2, "m", 0, 5), batch(3, "m", 4, 5)._replace(messages=2)])
    assert account.audit.corrupted == 2


def test_counts_what_goes_back_within_one_ownership(contents: Contents) -> None:
    account = counted(contents, [claim(1, "m"), batch(2, "m", 0, 5), batch(3, "m", 1, 2)])
    assert account.audit.out_of_order == 1
    again = counted(contents, [claim(1, "m"), batch(2, "m", 0, 5), claim(3, "m"), batch(4, "m", 1, 2)])
    assert again.audit.out_of_order == 0


def test_counts_deliveries_of_a_former_owner_unless_it_was_frozen_in_one(contents: Contents) -> None:
    records = [claim(1, "m"), batch(2, "m", 0, 1), claim(9, "n"), batch(10, "m", 1, 2), batch(11, "n", 1, 5)]
    assert counted(contents, records).audit.overlapping == 1
    assert counted(contents, records, awakenings=[Awakening("m", 9.5, 3.0)]).audit.overlapping == 0


def test_a_batch_under_way_while_its_member_was_frozen_may_repeat_what_the_next_owner_had(contents: Contents) -> None:
    records = [claim(1, "m"), batch(2, "m", 0, 1), claim(9, "n"), batch(10, "n", 1, 5), batch(11, "m", 1, 2)]
    account = counted(contents, records)
    assert (account.repeated_within, account.repeated_beyond) == (0, 1)
    account = counted(contents, records, awakenings=[Awakening("m", 10.5, 3.0)])
    assert (account.repeated_within, account.repeated_beyond) == (1, 0)


def test_exactly_once_means_each_row_once(contents: Contents) -> None:
    check = RowCheck(contents.logs)
    for place, payload in zip(PLACES, ALL, strict=True):
        check.row(P, *place, payload)
    assert check.result().exact

    check = RowCheck(contents.logs)
    check.row(P, 0, 0, b"a")
    check.row(P, 0, 0, b"a")
    check.row(P, 0, 1, b"another")
    check.row(TopicPartition("t", 1, 0), 0, 2, b"c")
    found = check.result()
    assert (found.rows, found.missing, found.twice, found.wrong) == (4, 4, 1, 2)
    assert not found.exact
