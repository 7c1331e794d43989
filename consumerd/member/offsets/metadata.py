"""What the metadata of an offset in Kafka say of it, where the request has no field for it.

Strategy: words of the form `name=value` after the text that the user configured, which any client may read and none has
to. Words that are not ours end the search. Pure.

    topic-id=ID        the topic that the offset is of, as Kafka's tools print ids
    leader-epoch=N     the epoch of the last message before it, for brokers before 2.1
    start=latest       nothing was handled as yet: the group began at this end of the log
    partitions=N       the topic had that many partitions then; earlier releases end their search here, so it is first
    epoch-start=N      the offset at which that epoch began, where a member saw it begin; first for the same reason
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from consumerd.base.partition import UNKNOWN_LOG, LogId
from consumerd.wire.registry.values import MAX_OFFSET

_WORD: Final = re.compile(r"(topic-id|leader-epoch|epoch-start|start|partitions)=([A-Za-z0-9_-]{1,22})")
_LARGEST_NUMBER: Final = 2**31 - 1
_START: Final = "start=latest"


class OffsetNotes(NamedTuple):
    """What is noted of an offset. `start`: whether it is the end of the log at which the group began.

    `partitions`: of a start, the number of the topic's partitions when the group began; None if it is not known.
    """

    log: LogId = UNKNOWN_LOG
    start: bool = False
    partitions: int | None = None


def format_metadata(text: str | None, notes: OffsetNotes, *, with_epoch: bool) -> str | None:
    """Return `text`, followed by the notes. `with_epoch`: the request has no field for the leader epoch."""
    words = []
    if notes.start and notes.partitions is not None:
        words.append(f"partitions={notes.partitions}")
    if notes.log.leader_epoch is not None and notes.log.epoch_start is not None:
        words.append(f"epoch-start={notes.log.epoch_start}")
    if notes.log.topic_id is not None:
        words.append(f"topic-id={notes.log.topic_id_text}")
    if with_epoch and notes.log.leader_epoch is not None:
        words.append(f"leader-epoch={notes.log.leader_epoch}")
    if notes.start:
        words.append(_START)
    return " ".join([*([text] if text else []), *words]) if words else text


def parse_metadata(metadata: str | None) -> OffsetNotes:
    """Return the notes at the end of the metadata, of which anybody may have written anything."""
    found: dict[str, str] = {}
    for word in reversed((metadata or "").split(" ")):
        match = _WORD.fullmatch(word)
        if match is None or match[1] in found:
            break
        found[match[1]] = match[2]
    log = LogId.from_text(found.get("topic-id"), _number(found.get("leader-epoch")))
    log = log._replace(epoch_start=_number(found.get("epoch-start"), MAX_OFFSET))
    start = found.get("start") == "latest"
    return OffsetNotes(log, start, _number(found.get("partitions")) if start else None)


def _number(text: str | None, largest: int = _LARGEST_NUMBER) -> int | None:
    """The number that is written there, if it is one that may be."""
    return int(text) if text is not None and text.isdecimal() and int(text) <= largest else None
