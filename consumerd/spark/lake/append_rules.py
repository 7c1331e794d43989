"""What of a batch may be appended to a table, so that each message is there once. Pure decisions.

Strategy: a batch is committed on the version of the table whose offsets were compared here, or not at all. So of two
writers that have the same messages, such as a member that was suspended and the partition's next owner, one finds the
offsets moved, and drops what is there. No lock and no epoch of owners is needed.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from consumerd.base.errors import HandlerFailedError
from consumerd.handlers.api import PartitionTakenError
from consumerd.spark.source.offsets import LogOffset


class OffsetRange(Protocol):
    """Messages of one log: a batch of a handler."""

    @property
    def start_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def topic_id(self) -> str | None: ...


class Appended(NamedTuple):
    """What is to be appended of a range: the messages from `first` on, none if that is the range's end.

    `new_log`: the table has nothing of this log yet.
    """

    first: int
    new_log: bool


class OffsetsMovedBackError(HandlerFailedError):
    """The table is no longer as far as this process has seen it."""


class LandedAlreadyError(HandlerFailedError):
    """Messages come from before the offset at which their owner continued."""


def decide(
    batch: OffsetRange, stored: LogOffset | None, reached: LogOffset | None, *, partition: object, table: str
) -> Appended:
    """What to append of `batch`, so that the table gets each message once.

    `stored`: where the table is, on the version that is to be committed on. `reached`: where it was for this owner of
    the partition, when the partition was taken over or when the owner's last batch was committed; None for both where
    there was nothing of the partition.

    Raises LandedAlreadyError: the log was truncated, or recreated where nothing tells logs apart. PartitionTakenError:
    another member has begun a newer log. OffsetsMovedBackError: the table was restored or replaced.
    """
    if stored is None:
        if reached is not None:
            raise OffsetsMovedBackError(_moved_back(table, partition, None, reached))
        return Appended(batch.start_offset, new_log=True)
    if not stored.may_be_of(batch.topic_id):
        if reached is not None and not reached.may_be_of(stored.topic_id):
            raise PartitionTakenError(
                f"another member has landed a newer log of {partition} (topic id {stored.topic_id}) in {table}; "
                "nothing of the batch was stored."
            )
        return Appended(batch.start_offset, new_log=True)
    if reached is not None and reached.may_be_of(stored.topic_id):
        if stored.offset < reached.offset:
            raise OffsetsMovedBackError(_moved_back(table, partition, stored, reached))
        if batch.start_offset < reached.offset:
            raise LandedAlreadyError(
                f"offset {batch.start_offset} of {partition} is below {reached.offset}, up to where {table} has it: "
                "the topic was recreated or its log was truncated; set another `directory` to land it again."
            )
    return Appended(min(max(batch.start_offset, stored.offset), batch.next_offset), new_log=False)


def _moved_back(table: str, partition: object, stored: LogOffset | None, reached: LogOffset) -> str:
    found = "nothing" if stored is None else f"offset {stored.offset}"
    return (
        f"{table} had {partition} up to offset {reached.offset}, and now up to {found}: it was restored or replaced. "
        "Nothing was stored: start consumerd again, which continues where the table is."
    )
