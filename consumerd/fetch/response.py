"""Classifying FETCH responses: what a decoded one means for the next fetch. Pure decisions, without policies.

Strategy: whatever brings the position forward is progress, and what stands behind the progress is classified when it
stands first. Only an answer that moved nothing is looked at: a message cut off by *our* size asks for a larger fetch;
one cut off although the broker could have sent more is torn in the log, or will be completed by the next append; a
length above the largest fetch is oversize; anything undecodable is corrupt. Sources: golden notes, 1 (the bytes are
cut at the max size; a fetch never crosses a segment) and 3 (a torn tail can be served for ever).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from consumerd.wire.v07 import BatchEnd

if TYPE_CHECKING:
    from consumerd.wire.v07 import MessageBatch
    from consumerd.wire.v08.records import RecordSet


class FetchOutcome(Enum):
    """The kind of a response."""

    #: Messages, or at least a position further on.
    PROGRESS = "progress"
    #: The end of the log.
    EMPTY = "empty"
    #: A message larger than this fetch; `size` is what to ask for.
    CUT = "cut"
    #: A message larger than any fetch may be; `size` is what it takes and `next_offset` where it ends, if known.
    OVERSIZE = "oversize"
    #: A message that ends where the log, or its segment, ends; `next_offset` is that end.
    TORN = "torn"
    #: Bytes that are no message; `next_offset` is where to go on, if known.
    CORRUPT = "corrupt"


class FetchDecision(NamedTuple):
    """An outcome and what the next fetch needs to know of it."""

    outcome: FetchOutcome
    size: int | None = None
    next_offset: int | None = None
    reason: str = ""


def classify(
    batch: MessageBatch, *, received: int, asked: int, fetch_bytes: int, max_fetch_bytes: int
) -> FetchDecision:
    """Classify the response to a fetch of `asked` bytes that brought `received` bytes, decoded as `batch`."""
    offset = batch.start_offset
    if batch.next_offset > offset or batch.payloads:
        return FetchDecision(FetchOutcome.PROGRESS)
    if batch.end is BatchEnd.CORRUPT:
        return FetchDecision(
            FetchOutcome.CORRUPT, next_offset=batch.resume_offset, reason=batch.problem or "not a message"
        )
    if not received:
        return FetchDecision(FetchOutcome.EMPTY)
    needed = batch.needed
    if needed is not None and needed > max_fetch_bytes:
        reason = f"a message of {needed} bytes, more than max_fetch_bytes {max_fetch_bytes}"
        return FetchDecision(FetchOutcome.OVERSIZE, size=needed, next_offset=offset + needed, reason=reason)
    if received < asked:
        return FetchDecision(
            FetchOutcome.TORN, next_offset=offset + received, reason=f"a message cut off after {received} bytes"
        )
    if asked >= max_fetch_bytes:
        reason = f"a message of unknown size, more than max_fetch_bytes {max_fetch_bytes}"
        return FetchDecision(FetchOutcome.OVERSIZE, reason=reason)
    larger = 2 * asked if needed is None else needed
    return FetchDecision(FetchOutcome.CUT, size=min(max(larger, fetch_bytes), max_fetch_bytes))


def classify_records(
    records: RecordSet, *, received: int, asked: int, fetch_bytes: int, max_fetch_bytes: int
) -> FetchDecision:
    """As `classify`, for brokers of 0.8 and later, which hold whole and checked messages: none of them is torn.

    Offsets are numbers of messages there: what follows the message or batch at `offset` begins at the next number at
    least, and the broker skips what is missing.
    """
    offset = records.start_offset
    if records.next_offset > offset or records.payloads:
        return FetchDecision(FetchOutcome.PROGRESS)
    if records.end is BatchEnd.CORRUPT:
        return FetchDecision(
            FetchOutcome.CORRUPT, next_offset=records.resume_offset, reason=records.problem or "not a message"
        )
    if not received:
        return FetchDecision(FetchOutcome.EMPTY)
    needed = records.needed
    if asked >= max_fetch_bytes or (needed is not None and needed > max_fetch_bytes):
        size = "unknown size" if needed is None else f"{needed} bytes"
        reason = f"a message or batch of {size}, more than max_fetch_bytes {max_fetch_bytes}"
        return FetchDecision(FetchOutcome.OVERSIZE, size=needed, next_offset=offset + 1, reason=reason)
    larger = 2 * asked if needed is None else max(needed, asked + 1)
    return FetchDecision(FetchOutcome.CUT, size=min(max(larger, fetch_bytes), max_fetch_bytes))
