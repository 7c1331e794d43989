"""A partition of an archive beside the one that it was replayed to: are the messages the same, and at which offsets?

Strategy: both are read from the front in step, message by message. What is compared is all that was replayed: key,
value, headers, and the timestamp where the archive has one and the target keeps it. Since equal messages stand at equal
places, the same walk translates offsets: those of the archive have gaps that compaction left, and both logs have
control batches of their own transactions, which have no message.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain

from consumerd.handlers.contents import known_timestamp
from consumerd.handlers.messages import KeyedMessage
from consumerd.operate.migrate.archived_topics import ArchivedPartition
from consumerd.operate.migrate.offsets_translation import ReadableLog
from consumerd.wire.v08.records import Record, TimestampType


@dataclass(slots=True)
class LogMatch:
    """How far the two agree. `messages`: equal ones from the beginning. `digest`: BLAKE2b of these, in hexadecimal.

    `difference`: a clause with the first message that is missing or differs; None if the target has all. `end`: the
    target's offset behind the last equal message. `offsets`: offset of the archive -> of the target, of those that
    were asked for and are not behind a difference.
    """

    messages: int = 0
    digest: str = ""
    difference: str | None = None
    end: int = 0
    offsets: dict[int, int] = field(default_factory=dict)


async def match(
    archived: ArchivedPartition, log: ReadableLog, topic: str, *, offsets: Iterable[int] = (), whole: bool = True
) -> LogMatch:
    """Compare the archive's partition with that of `topic` of the same number, and translate `offsets`.

    Without `whole` it ends once these are translated. Messages that the target has behind the archive's last one are
    not looked at. Raises BrokerError, CorruptDataError, ReadFailedError.
    """
    number = archived.partition.partition
    bounds = await log.bounds(topic, number)
    found = LogMatch(end=bounds.start)
    wanted = sorted(set(offsets), reverse=True)
    digest = MessageDigest()
    async with aclosing(_records(log.read(topic, number, *bounds))) as target:
        with closing(archived.read()) as chunks:  # type: ignore[type-var]  # a generator
            for message in chain.from_iterable(chunks):
                if not (whole or wanted):
                    break
                record = await anext(target, None)
                found.difference = _difference(message, record)
                if record is None or found.difference is not None:
                    return found
                while wanted and wanted[-1] <= message.offset:
                    found.offsets[wanted.pop()] = record.offset
                found.messages += 1
                found.end = record.next_offset
                digest.add(message)
    found.digest = digest.text
    found.offsets |= dict.fromkeys(wanted, found.end)
    return found


async def _records(pieces: AsyncIterator[list[Record]]) -> AsyncGenerator[Record, None]:
    """The records of a log, one after the other."""
    async with aclosing(pieces):  # type: ignore[type-var]  # a generator
        async for piece in pieces:
            for record in piece:
                yield record


def _difference(message: KeyedMessage, record: Record | None) -> str | None:
    """What of a message is not the same, as a clause."""
    if record is None:
        return f"the message at offset {message.offset} is missing"
    what = [
        name
        for name, ours, theirs in (
            ("key", message.key, record.key),
            ("value", message.payload, record.payload),
            ("headers", message.headers, record.headers),
        )
        if ours != theirs
    ]
    stamp = known_timestamp(message.timestamp)
    if stamp is not None and record.timestamp_type != TimestampType.LOG_APPEND_TIME and stamp != record.timestamp:
        what.append("timestamp")
    if not what:
        return None
    fields = " and ".join(what)
    return f"the message at offset {message.offset} differs in its {fields} from that at {record.offset} of the target"


class MessageDigest:
    """BLAKE2b of messages in order, with all that is compared, and their number."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self.messages = 0

    @property
    def text(self) -> str:
        """In hexadecimal."""
        return self._hash.hexdigest()

    def add(self, message: KeyedMessage | Record) -> None:
        fields = [message.key, message.payload, *(each for name, value in message.headers for each in (name, value))]
        for each in fields:
            data = each.encode("utf-8", "surrogateescape") if isinstance(each, str) else each
            self._hash.update(b"-" if data is None else b"%d:" % len(data) + data)
        self._hash.update(b"@%d;" % message.timestamp)
        self.messages += 1

    def add_all(self, messages: Iterable[KeyedMessage]) -> None:
        for each in messages:
            self.add(each)


async def is_same(sent: MessageDigest, log: ReadableLog, topic: str, number: int) -> bool:
    """Whether a partition begins with the messages that were sent, by their digest; the archive is not read.

    False where `match` has to find out: it allows for timestamps that the target has in place of unknown ones. Raises
    BrokerError.
    """
    there = MessageDigest()
    async with aclosing(_records(log.read(topic, number, *await log.bounds(topic, number)))) as target:
        while there.messages < sent.messages and (record := await anext(target, None)) is not None:
            there.add(record)
    return (there.messages, there.text) == (sent.messages, sent.text)
