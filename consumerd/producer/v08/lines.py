"""Lines to a topic of 0.8 or later: each becomes a message, and the first that fails is named.

Strategy: lines are sent as they come, all that were read at once together; beside that, batches are confirmed in the
order of their first lines. So when one fails, all lines before its first are stored, and a retry begins at that line.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from consumerd.base.errors import BrokerError, ConsumerdError
from consumerd.net.client.errors import BrokerRefusedError
from consumerd.producer.errors import MessageSizeTooLargeError
from consumerd.producer.lines import InputError, LineReader
from consumerd.producer.v08.batches import BatchRange
from consumerd.producer.v08.delivery import is_too_large
from consumerd.producer.v08.producer import V08Producer
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.records import Headers


@dataclass(frozen=True, slots=True)
class LinePlan:
    """The rules by which lines become messages. `separator`: between key and message; `max_bytes`: limit of both."""

    topic: str
    partition: int | None = None
    separator: bytes | None = None
    headers: Headers = ()
    max_bytes: int | None = None


@dataclass(slots=True)
class _Share:
    """The lines of a batch: the first one's number, how many, and what has them, with the number of its first line."""

    first: int
    lines: int = 0
    ranges: list[tuple[int, BatchRange]] = field(default_factory=list)


class LineSender:
    """Sends lines with a producer that runs, and stays the caller's."""

    def __init__(self, producer: V08Producer, plan: LinePlan) -> None:
        self._producer = producer
        self._plan = plan
        #: Accepted so far.
        self.lines = 0
        self.bytes = 0
        self._open: dict[asyncio.Future[tuple[int | None, int]], _Share] = {}
        self._news = asyncio.Event()
        self._ended = False

    async def run(self, reader: LineReader) -> None:
        """Send all lines; returns when they are confirmed (with acks 0: sent).

        Raises (perhaps in a group) InputError and MessageSizeTooLargeError for a line that cannot be sent, after those
        before it were, and BrokerError with the number of the first line that was refused.
        """
        problem: ConsumerdError | None = None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._confirm())
            try:
                while (lines := await reader.read()) is not None:
                    await self._send(lines)
            except (InputError, MessageSizeTooLargeError) as error:
                problem = error
            await self._producer.flush()
            self._ended = True
            self._news.set()
        if problem is not None:
            raise problem

    async def _send(self, lines: list[bytes]) -> None:
        """All at once, or one after another where they differ, or one of them cannot be sent."""
        plan = self._plan
        if plan.separator is None and (plan.max_bytes is None or max(map(len, lines)) <= plan.max_bytes):
            place = 0

            def taken(part: BatchRange) -> None:
                nonlocal place
                size = sum(map(len, lines[place : place + part.messages]))
                place += part.messages
                self._taken(part, size)

            try:
                await self._producer.send_many(
                    plan.topic, lines, partition=plan.partition, headers=plan.headers, taken=taken
                )
            except MessageSizeTooLargeError:  # and nothing was sent
                pass
            else:
                return
        for line in lines:
            await self._send_one(line)

    async def _send_one(self, line: bytes) -> None:
        plan, number = self._plan, self.lines + 1
        key, value = None, line
        if plan.separator is not None:
            key, found, value = line.partition(plan.separator)
            if not found:
                raise InputError(f"line {number} has no key separator {plan.separator.decode(errors='replace')!r}.")
        size = len(value) + len(key or b"")
        if plan.max_bytes is not None and size > plan.max_bytes:
            raise MessageSizeTooLargeError(f"line {number} has {size} bytes; --max-message-bytes is {plan.max_bytes}.")
        try:
            delivery = await self._producer.send(
                plan.topic, value, key=key, partition=plan.partition, headers=plan.headers
            )
        except MessageSizeTooLargeError as error:
            raise MessageSizeTooLargeError(f"line {number} is too large: {error}") from error
        self._taken(BatchRange(delivery.batch, delivery.number, 1), len(line))

    def _taken(self, part: BatchRange, line_bytes: int) -> None:
        """The next lines, which have that many bytes, are in a batch."""
        outcome = part.batch.outcome
        share = self._open.get(outcome)
        if share is None:
            share = self._open[outcome] = _Share(self.lines + 1)
            self._news.set()
        share.lines += part.messages
        share.ranges.append((self.lines + 1, part))
        self.lines += part.messages
        self.bytes += line_bytes

    async def _confirm(self) -> None:
        """Await the acknowledgement of all batches. Raises the error of the first that fails."""
        while True:
            if not self._open:
                if self._ended:
                    return
                self._news.clear()
                await self._news.wait()
                continue
            outcome, share = next(iter(self._open.items()))
            await asyncio.wait([outcome])
            del self._open[outcome]
            error = outcome.exception()
            if error is not None:
                raise self._failure(share, error)

    def _failure(self, share: _Share, error: BaseException) -> ConsumerdError:
        failed: ConsumerdError
        before = "all lines before it were sent" if share.first > 1 else "nothing was sent before it"
        if not is_too_large(error):  # which is said of one message
            more = f" and {share.lines - 1} more in its batch" if share.lines > 1 else ""
            failed = BrokerError(f"line {share.first}{more} may not have arrived, {before}: {error}")
        else:
            line, size, in_order = _failed_line(share)
            if line > share.first:
                up_to = "it" if in_order else f"line {share.first}"
                before = f"all lines before {up_to} were sent" if in_order or share.first > 1 else "others were sent"
            failed = MessageSizeTooLargeError(
                f"line {line} has {size} bytes, more than the topic {self._plan.topic!r} takes "
                f"({_limit(error)}); {before}."
            )
        failed.__cause__ = error
        return failed


def _failed_line(share: _Share) -> tuple[int, int, bool]:
    """The first line of a batch that failed, its bytes, and whether all lines of the batch before it are in a row."""
    begin = share.ranges[0][1].first
    for line, (batch, first, count) in share.ranges:
        for part in batch.parts_of(first, count):
            if part.outcome.exception() is not None:
                number = max(first - part.first, 0)
                key = part.keys[number] if part.keys and number < len(part.keys) else None
                place = part.first + number
                size = len(part.values[number] or b"") + len(key or b"")
                return line + place - first, size, line + place - first - share.first == place - begin
    raise AssertionError("no line of the batch failed")


def _limit(error: BaseException) -> str:
    """Return the settings that limit what a broker refused for its size."""
    if isinstance(error, BrokerRefusedError) and error.code == ErrorCode.RECORD_LIST_TOO_LARGE:
        return "segment.bytes, or log.segment.bytes of the brokers"
    return "max.message.bytes, or message.max.bytes of the brokers"
