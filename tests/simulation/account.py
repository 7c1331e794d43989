"""The account of one group: the member, time and correctness of each delivery.

Strategy: it is notified of every produced message, of the beginning and end of every delivery, and of every offset
that is written; a broken rule is a `violation` at that moment. Lost and repeated messages are counted at the end.
Subclasses define, for each kind of coordination, which member may get a partition or write its offset.

A log may become another one (`log_changed`): what was at its end, or all of it, is gone, and offsets are given again.
A message is therefore known by its content, too. Messages that are gone need not be delivered any more, but those in
flight may be, and none of them twice; what is written there afterwards has to be delivered like any other. An offset
that is committed after the change says nothing of the new messages until a member has got one: it was on its way.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

from consumerd.base.partition import TopicPartition
from tests.simulation.kernel import Kernel


class Message(NamedTuple):
    """A message; its content (where the world tells it) distinguishes logs that follow one another."""

    partition: TopicPartition
    offset: int
    content: bytes = b""


class HandOver(NamedTuple):
    """One message given to a handler."""

    time: float
    member: str
    partition: TopicPartition
    offset: int
    #: Whether the partition was the member's then, where the account knows; if not, another member had taken it.
    owned: bool = True
    content: bytes = b""

    @property
    def message(self) -> Message:
        """The message."""
        return Message(self.partition, self.offset, self.content)


class Account:
    """Of one group. Offsets are those of messages, positions those behind them."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.hand_overs: list[HandOver] = []
        self.violations: list[str] = []
        #: Whether an offset may be set back: where a program seeks.
        self.may_go_back = False
        #: Members that may set an offset back all the same: peers that write without a check.
        self.careless: set[str] = set()
        #: Frozen processes: their batches are not in progress.
        self.frozen: set[str] = set()
        #: The batches that members were handling when their handlers were cancelled.
        self.cancelled: set[tuple[str, TopicPartition, int]] = set()
        #: Messages before these positions need not be delivered; None: not counted yet.
        self._default_since: float | None = None
        #: Of each log its messages by offset, in order.
        self._produced: dict[TopicPartition, dict[int, bytes]] = {}
        #: Messages that were in a log before it became another one.
        self._gone: set[Message] = set()
        #: Of logs that changed the first offset that was given again, until a message from there on was delivered.
        self._unseen: dict[TopicPartition, int] = {}
        self._since: dict[TopicPartition, float] = {}
        self._in_hand: dict[TopicPartition, HandOver] = {}
        self._handed: Counter[Message] = Counter()
        self._handled: set[Message] = set()
        self._committed: dict[TopicPartition, int] = {}

    @property
    def count(self) -> int:
        """Messages that have to be delivered."""
        return sum(offset >= self._begin_of(tp) for tp, offsets in self._produced.items() for offset in offsets)

    # -- what happens

    def produced(self, partition: TopicPartition, offset: int, content: bytes = b"") -> None:
        """A message is in the log."""
        self._produced.setdefault(partition, {})[offset] = content

    def log_changed(self, partition: TopicPartition, start: int = 0) -> None:
        """The messages from `start` on are gone; others may be written there."""
        log = self._produced.get(partition, {})
        for offset in [each for each in log if each >= start]:
            self._gone.add(Message(partition, offset, log.pop(offset)))
        self._unseen[partition] = start
        if start == 0:
            self._committed.pop(partition, None)
        elif partition in self._committed:
            self._committed[partition] = min(start, self._committed[partition])
        if partition in self._since:  # all of it is new to a group that had begun
            self._since[partition] = min(start, self._since[partition])

    def log_added(self, partition: TopicPartition) -> None:
        """A partition that comes to a topic which the group reads: all of it counts, wherever members begin."""
        if self._default_since is not None:
            self._since[partition] = 0

    def count_from(self, ends: dict[TopicPartition, int]) -> None:
        """Messages before these positions need not be delivered: there was no group yet."""
        self._since = dict(ends)
        self._default_since = 0

    def count_all(self, *, latest: bool = False) -> None:
        """Every message counts; with `latest` those after the first that was delivered or committed."""
        self._default_since = math.inf if latest else 0

    def _begin_of(self, partition: TopicPartition) -> float:
        return self._since.get(partition, self._default_since or 0)

    def _counts_from(self, partition: TopicPartition, position: int) -> None:
        if self._default_since == math.inf:
            self._since[partition] = min(position, self._begin_of(partition))

    def begin(
        self, member: str, partition: TopicPartition, offsets: list[int], contents: list[bytes] | None = None
    ) -> None:
        """A handler gets messages."""
        holder = self._in_hand.get(partition)
        self._counts_from(partition, offsets[0])
        if holder is not None and not any(self._may_hold(each, partition) for each in (holder.member, member)):
            self.violate(f"{member} is handed {partition} at {offsets[0]} while {holder.member} has it in hand")
        messages = self._messages(partition, offsets, contents)
        present = self._present(messages[0])
        owned = self._check_begin(member, partition, offsets[0] if present else None)
        self._in_hand[partition] = HandOver(self._kernel.now, member, partition, offsets[0], owned)
        for message in messages:
            if not self._present(message):
                if message not in self._gone and contents is not None:
                    self.violate(f"{member} is handed {message}, which was never there")
            elif partition in self._unseen and message.offset >= self._unseen[partition]:
                del self._unseen[partition]
            self._handed[message] += 1
            self.hand_overs.append(
                HandOver(self._kernel.now, member, partition, message.offset, owned, message.content)
            )

    def _messages(self, partition: TopicPartition, offsets: list[int], contents: list[bytes] | None) -> list[Message]:
        """The messages at these offsets; without `contents` those that are in the log now."""
        log = self._produced.get(partition, {})
        if contents is None:
            contents = [log.get(offset, b"") for offset in offsets]
        return [Message(partition, *each) for each in zip(offsets, contents, strict=True)]

    def _present(self, message: Message) -> bool:
        """Whether the log has the message now."""
        return self._produced.get(message.partition, {}).get(message.offset) == message.content

    def end(
        self,
        member: str,
        partition: TopicPartition,
        offsets: list[int],
        contents: list[bytes] | None = None,
        *,
        handled: bool,
    ) -> None:
        """The handler is through with them, or was cancelled."""
        holder = self._in_hand.get(partition)
        if holder is not None and holder.member == member:
            del self._in_hand[partition]
        if handled:
            self.handled(partition, offsets, contents)
        else:
            self.cancelled.update((member, partition, offset) for offset in offsets)

    def handled(self, partition: TopicPartition, offsets: list[int], contents: list[bytes] | None = None) -> None:
        """These messages have been handled, also if the partition has another owner by now."""
        self._handled.update(self._messages(partition, offsets, contents))

    def _may_hold(self, member: str, partition: TopicPartition) -> bool:
        """Whether a process may be handling messages of the partition beside its owner."""
        return member in self.frozen or member in self.careless

    def _check_begin(self, member: str, partition: TopicPartition, offset: int | None) -> bool:
        """Check whether a member may get the partition now, from there on; returns whether it is the member's.

        `offset`: None for messages that are gone from the log.
        """
        return True

    def _check_write(self, partition: TopicPartition, position: int, writer: str) -> None:
        """Look whether a process may write this offset."""

    def died(self, member: str) -> None:
        """A batch that a dead process was handling is not in progress any more."""
        for partition in [each for each, holder in self._in_hand.items() if holder.member == member]:
            del self._in_hand[partition]

    def committed(self, partition: TopicPartition, position: int, writer: str = "") -> None:
        """An offset was written by a process."""
        self._check_write(partition, position, writer)
        if position > self._unseen.get(partition, math.inf):
            self._kernel.note("account", f"{partition} at {position}: the offset of a log that is gone")
            return
        self._counts_from(partition, position)
        before = self._committed.get(partition)
        self._committed[partition] = position
        if before is not None and position < before and not self.may_go_back and writer not in self.careless:
            self.violate(f"the offset of {partition} goes back from {before} to {position}, by {writer}")
        since = max(self._begin_of(partition), before or 0)
        log = self._produced.get(partition, {})
        for offset in reversed(log):
            if offset < since:
                break
            unhandled = offset < position and Message(partition, offset, log[offset]) not in self._handled
            if unhandled and self._default_since is not None:
                self.violate(f"{partition} is committed up to {position} by {writer}, but {offset} was not handled")
                break

    def violate(self, what: str) -> None:
        """Something happened that may never happen."""
        self.violations.append(f"{self._kernel.now:.6f} {what}")
        self._kernel.note("VIOLATION", what)

    # -- the result

    def summary(self) -> dict[str, int]:
        """The numbers of messages that had to be delivered, were lost, were repeated, and of violations."""
        return {
            "messages": self.count,
            "lost": len(self.lost),
            "repeated": len(self.repeated),
            "uncommitted": len(self.uncommitted),
            "violations": len(self.violations),
        }

    def require_each_once(self, *, lease_ended: bool = False) -> None:
        """Fail unless everything was delivered once and committed; otherwise the whole account is shown.

        `lease_ended`: what a handler had when it was cancelled, because the lease ended, is delivered again.
        """
        summary = self.summary()
        wrong = (self.violations[:5], self.lost[:5], self.repeated[:5], self.uncommitted[:5])
        in_hand = {(partition, offset) for _, partition, offset in self.cancelled if lease_ended}
        again = [message for message in self.repeated if (message.partition, message.offset) not in in_hand]
        assert summary == {**summary, "lost": 0, "uncommitted": 0, "violations": 0}, wrong
        assert not again, wrong
        assert summary["messages"] > 0

    @property
    def counts_all(self) -> bool:
        """Whether every message counts, wherever members begin."""
        return self._default_since == 0

    def former(self, partition: TopicPartition) -> list[Message]:
        """The messages that were in a log before it became another one."""
        return [message for message in self._gone if message.partition == partition]

    @property
    def begun(self) -> set[TopicPartition]:
        """Partitions of which it is known where their messages begin to count."""
        return set(self._since)

    @property
    def lost(self) -> list[Message]:
        """Messages of the logs as they are now that no member got."""
        return [
            message
            for partition, log in self._produced.items()
            for message in (Message(partition, *each) for each in log.items())
            if message.offset >= self._begin_of(partition) and message not in self._handed
        ]

    @property
    def repeated(self) -> list[Message]:
        """Messages that were delivered more than once."""
        return [message for message, times in self._handed.items() if times > 1]

    @property
    def uncommitted(self) -> list[TopicPartition]:
        """Partitions with handled messages behind the committed offset."""
        return sorted(
            {
                message.partition
                for message in self._handled
                if message.offset >= self._committed.get(message.partition, 0) and self._present(message)
            },
            key=str,
        )

    def offsets(self, partition: TopicPartition) -> list[int]:
        """The messages that were produced to a partition."""
        return list(self._produced.get(partition, ()))

    def history(self, partition: TopicPartition) -> list[HandOver]:
        """The hand-overs of one partition."""
        return [each for each in self.hand_overs if each.partition == partition]
