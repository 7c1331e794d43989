"""The account of logs that become other ones: what has to be delivered then, and what may not be."""

from __future__ import annotations

from consumerd.base.partition import TopicPartition
from tests.simulation.account import Account, Message
from tests.simulation.kernel import Kernel

PLACE = TopicPartition.numbered("events", 0)


class Log:
    """One log, its account, and one member."""

    def __init__(self, *, latest: bool = False) -> None:
        self.account = Account(Kernel())
        self.account.count_all(latest=latest)
        self.contents: list[bytes] = []

    def write(self, *contents: bytes) -> None:
        for content in contents:
            self.account.produced(PLACE, len(self.contents), content)
            self.contents.append(content)

    def cut(self, end: int) -> None:
        del self.contents[end:]
        self.account.log_changed(PLACE, end)

    def deliver(self, first: int, *contents: bytes) -> None:
        """The member handles messages."""
        offsets = list(range(first, first + len(contents)))
        self.account.begin("m", PLACE, offsets, list(contents))
        self.account.end("m", PLACE, offsets, list(contents), handled=True)

    @property
    def is_well(self) -> bool:
        account = self.account
        return not (account.lost or account.repeated or account.uncommitted or account.violations)


def read_log(*, latest: bool = False) -> Log:
    """A log of four messages, all of them handled and committed."""
    log = Log(latest=latest)
    if latest:
        log.account.committed(PLACE, 0, "m")
    log.write(b"a", b"b", b"c", b"d")
    log.deliver(0, b"a", b"b", b"c", b"d")
    log.account.committed(PLACE, 4, "m")
    assert log.is_well
    return log


def test_new_log_is_delivered_from_its_beginning() -> None:
    for latest in (False, True):
        log = read_log(latest=latest)
        log.cut(0)
        log.write(b"e", b"f", b"g", b"h", b"i")
        log.deliver(0, b"e", b"f", b"g", b"h", b"i")
        log.account.committed(PLACE, 5, "m")
        assert log.is_well


def test_messages_that_are_passed_over_are_lost() -> None:
    log = read_log()
    log.cut(0)
    log.write(b"e", b"f", b"g", b"h", b"i")
    log.deliver(4, b"i")
    assert log.account.lost == [Message(PLACE, at, log.contents[at]) for at in range(4)]
    log.account.committed(PLACE, 5, "m")
    (violation,) = log.account.violations
    assert "committed up to 5 by m, but 3 was not handled" in violation


def test_what_was_before_the_cut_is_not_delivered_again() -> None:
    log = read_log()
    log.cut(2)
    log.write(b"e", b"f", b"g")
    log.deliver(2, b"e", b"f", b"g")
    log.account.committed(PLACE, 5, "m")
    assert log.is_well
    log.deliver(1, b"b")
    assert log.account.repeated == [Message(PLACE, 1, b"b")]


def test_messages_that_are_gone_may_still_come_once() -> None:
    log = read_log()
    log.write(b"x")
    log.cut(0)
    log.write(b"e")
    log.deliver(4, b"x")
    assert log.account.lost == [Message(PLACE, 0, b"e")]
    log.deliver(0, b"e")
    log.account.committed(PLACE, 1, "m")
    assert log.is_well
    log.deliver(4, b"x")
    assert log.account.repeated == [Message(PLACE, 4, b"x")]


def test_offset_that_was_on_its_way_says_nothing_of_the_new_log() -> None:
    log = read_log()
    log.cut(0)
    log.write(b"e", b"f", b"g", b"h", b"i", b"j")
    log.account.committed(PLACE, 4, "m")
    assert not log.account.violations
    log.deliver(0, b"e", b"f", b"g", b"h", b"i", b"j")
    assert log.account.uncommitted == [PLACE]
    log.account.committed(PLACE, 6, "m")
    assert log.is_well


def test_offset_below_the_cut_may_not_be_written() -> None:
    log = read_log()
    log.cut(2)
    log.account.committed(PLACE, 2, "m")
    assert log.is_well
    log.account.committed(PLACE, 0, "m")
    assert "goes back from 2 to 0" in log.account.violations[0]


def test_content_that_was_never_in_the_log_is_a_violation() -> None:
    log = read_log()
    log.deliver(4, b"?")
    assert "which was never there" in log.account.violations[0]


def test_added_partition_counts_from_its_beginning() -> None:
    log = read_log(latest=True)
    added = TopicPartition.numbered("events", 1)
    log.account.produced(added, 0, b"a")
    log.account.log_added(added)
    log.account.begin("m", added, [1], [b"b"])
    assert Message(added, 0, b"a") in log.account.lost
