"""Classifying decoded FETCH responses, for the next fetch. Pure decisions, without policies.

Strategy: a response that moves the position is progress, and the data after the progress is classified when it comes
first. Only a response that moved nothing is classified further: a message cut off by *our* size asks for a larger
fetch; one cut off although the broker could have sent more is torn in the log, or will be completed by the next append;
a length above the largest fetch is oversize; anything undecodable is corrupt. Sources: golden notes, 1 (the bytes are
cut at the max size; a fetch never crosses a segment) and 3 (a torn tail can be served for ever).

Brokers of 0.8 and later hold whole and checked messages: none of them is torn. Offsets number messages there, so what
follows the message or batch at `offset` begins at the next number at least, and the broker skips what is missing.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from consumerd.member.fetch.lane import Fetched
from consumerd.wire.v07 import BatchEnd
from consumerd.wire.v08.records import RecordSet


class FetchOutcome(Enum):
    """The kind of a response."""

    #: Messages, or at least a higher position.
    PROGRESS = "progress"
    #: The end of the log.
    EMPTY = "empty"
    #: A message larger than this fetch; `size` is the size to request.
    CUT = "cut"
    #: A message larger than any fetch may be; `size` is its size and `next_offset` its end, if known.
    OVERSIZE = "oversize"
    #: A message that ends where the log, or its segment, ends; `next_offset` is that end.
    TORN = "torn"
    #: Bytes that are not a message; `next_offset` is where to continue, if known.
    CORRUPT = "corrupt"


class FetchDecision(NamedTuple):
    """An outcome, with the values that the next fetch needs."""

    outcome: FetchOutcome
    size: int | None = None
    next_offset: int | None = None
    reason: str = ""


def classify(fetched: Fetched, *, received: int, asked: int, size: int, max_size: int) -> FetchDecision:
    """Classify the response to a fetch of `asked` bytes that returned `received` bytes, decoded as `fetched`."""
    offset, needed = fetched.start_offset, fetched.needed
    if fetched.next_offset > offset or len(fetched):
        return FetchDecision(FetchOutcome.PROGRESS)
    if fetched.end is BatchEnd.CORRUPT:
        return FetchDecision(
            FetchOutcome.CORRUPT, next_offset=fetched.resume_offset, reason=fetched.problem or "not a message"
        )
    if not received:
        return FetchDecision(FetchOutcome.EMPTY)
    numbered = isinstance(fetched, RecordSet)
    too_large = needed is not None and needed > max_size
    if received < asked and not too_large and not numbered:
        return FetchDecision(
            FetchOutcome.TORN, next_offset=offset + received, reason=f"a message cut off after {received} bytes"
        )
    if too_large or asked >= max_size:
        what = "a message or batch" if numbered else "a message"
        found = "unknown size" if needed is None else f"{needed} bytes"
        behind = offset + 1 if numbered else None if needed is None else offset + needed
        reason = f"{what} of {found}, more than max_size {max_size}"
        return FetchDecision(FetchOutcome.OVERSIZE, size=needed, next_offset=behind, reason=reason)
    larger = 2 * asked if needed is None else max(needed, asked + 1)
    return FetchDecision(FetchOutcome.CUT, size=min(max(larger, size), max_size))
