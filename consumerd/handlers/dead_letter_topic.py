"""Dead letters in a topic of either dialect: confirmed by the brokers before the offset may be committed.

Strategy: a letter is the message itself, with its key and headers, and the description of the failure in headers
behind its own, so any tool that reads or replays topics can handle it. Brokers of 0.7 have no headers, those before
0.11 neither: there (and where it is configured) a letter is the JSON object that `dead_letters.encode_letter` makes.

A confirmation is that of the producer: all replicas in sync, or, on 0.7, that the messages were read back.

The description makes a letter larger than its message, which may be as large as the topic allows. A letter that is too
large is sent again with a shorter description, and goes to a file beside the topic in the end: its partition continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Final, Protocol

import structlog

from consumerd.base.errors import ConfigError, ConsumerdError, HandlerFailedError, reason_of
from consumerd.base.partition import NO_BROKER
from consumerd.base.ports import Clock
from consumerd.handlers.contents import known_timestamp
from consumerd.handlers.dead_letters import PREFIX, DeadLetters, Letter, encode_letter
from consumerd.producer import ClusterProducer, ProducerData
from consumerd.producer.v08.delivery import is_too_large

log = structlog.get_logger(__name__)


#: The keys that name topics for what failed.
DEAD_LETTER_TOPIC: Final = "handler.dead_letter_topic"
RETRY_TOPIC: Final = "handler.retry_topic"


class LetterProducer(Protocol):
    """The part of a producer that letters need: `consumerd.producer.Producer` and `ClusterProducer` have it."""

    async def send_all(self, data: Sequence[ProducerData], *, merge: bool = ...) -> None:
        """Send, and return when the brokers have confirmed all of it."""
        ...


class OpenedProducer(Protocol):
    """A producer, and whether its brokers keep headers."""

    @property
    def producer(self) -> LetterProducer: ...

    @property
    def headers(self) -> bool: ...


class TopicDeadLetters(DeadLetters):
    """Sends letters to `topic` by the producer that `opened()` gives while it is entered."""

    def __init__(
        self,
        topic: str,
        opened: Callable[[], AbstractAsyncContextManager[OpenedProducer]],
        *,
        clock: Clock,
        as_json: bool = False,
        beside: DeadLetters | None = None,
        key: str = DEAD_LETTER_TOPIC,
    ) -> None:
        self._topic = topic
        self._key = key
        #: For letters that are too large for the topic.
        self._beside = beside
        self._opened = opened
        self._clock = clock
        self._as_json = as_json
        self._stack = AsyncExitStack()
        self._producer: OpenedProducer | None = None

    async def start(self) -> None:
        """Find the brokers. Raises ConsumerdError."""
        self._producer = await self._stack.enter_async_context(self._opened())
        if self._key == RETRY_TOPIC and not self._producer.headers:
            raise ConfigError(f"{RETRY_TOPIC} needs brokers of 0.11 or later: messages of 0.7 have no headers.")

    async def stop(self) -> None:
        self._producer = None
        if self._beside is not None:
            await self._beside.stop()
        try:
            await self._stack.aclose()
        except ConsumerdError as error:  # every letter was confirmed on its own
            log.warning("dead_letter_producer_close_failed", topic=self._topic, reason=reason_of(error))

    async def write(self, letters: Sequence[Letter]) -> None:
        """Send `letters`; nothing of them is on its way any more when this ends."""
        for letter in await self._too_large(letters):
            versions = letter.shorter()
            if len(letters) == 1:
                next(versions)  # which was too large
            for shorter in versions:
                if not await self._too_large([shorter]):
                    break
            else:
                await self._put_beside(letter)

    async def _put_beside(self, letter: Letter) -> None:
        message = letter.message
        if self._beside is None:
            raise HandlerFailedError(
                f"the message at offset {message.offset} of {message.partition} is too large for the dead-letter topic "
                f"{self._topic}: raise its max.message.bytes; the message is not committed."
            )
        await self._beside.write([letter])
        log.warning(
            "dead_letter_beside_topic",
            topic=self._topic,
            partition=str(message.partition),
            offset=message.offset,
            place=str(self._beside),
            reason="the letter is too large for the topic (max.message.bytes)",
        )

    async def _too_large(self, letters: Sequence[Letter]) -> list[Letter]:
        """Send letters; return those that are not stored, because they are too large for the topic together or alone.

        Raises HandlerFailedError.
        """
        opened = self._producer
        if opened is None:
            raise HandlerFailedError(f"dead letters for {self._topic} cannot be sent: the producer is not started.")
        make = self._as_message if opened.headers and not self._as_json else self._as_line
        data = [make(letter, keyed=opened.headers) for letter in letters]
        try:
            errors = await _send_each(opened.producer, data)
            for error in errors:
                if error is not None and not is_too_large(error):
                    raise error
        except ConsumerdError as error:
            reason = reason_of(error)
            remedy = ' Set handler.dead_letter_as = "json".' if "not support headers" in reason else ""
            if self._key == RETRY_TOPIC and remedy:
                remedy = f" {RETRY_TOPIC} needs brokers of 0.11 or later."
            kind = "retry" if self._key == RETRY_TOPIC else "dead-letter"
            raise HandlerFailedError(
                f"cannot write to the {kind} topic {self._topic}: {reason}; "
                f"the messages are not committed and are delivered again after a restart.{remedy}"
            ) from error
        return [letter for letter, error in zip(letters, errors, strict=True) if error is not None]

    def _as_line(self, letter: Letter, *, keyed: bool) -> ProducerData:
        key = letter.message.key if keyed else None
        return ProducerData(self._topic, [encode_letter(letter, self._clock.wall())], key)

    def _as_message(self, letter: Letter, *, keyed: bool) -> ProducerData:
        message = letter.message
        timestamp = known_timestamp(message.timestamp)
        headers = (
            *message.headers,
            *_headers(letter, self._clock.wall() if letter.failed_at is None else letter.failed_at),
        )
        return ProducerData(self._topic, [message.payload], message.key, None, headers, timestamp)


async def _send_each(producer: LetterProducer, data: Sequence[ProducerData]) -> Sequence[ConsumerdError | None]:
    """The errors of `data`, which are sent; None for what is stored. Raises those of none of them."""
    if isinstance(producer, ClusterProducer):
        return await producer.send_each(data)
    try:
        await producer.send_all(data)
    except ConsumerdError as error:
        if not is_too_large(error):
            raise
        return [error] * len(data)  # which a producer of 0.7 finds before it sends anything
    return [None] * len(data)


def _headers(letter: Letter, failed_at: float) -> list[tuple[str, bytes | None]]:
    """Return the headers that describe the failure, as text in UTF-8. Only partitions of 0.7 have a broker."""
    message = letter.message
    known: dict[str, Any] = message.identity._asdict()
    if message.broker == NO_BROKER:
        del known["broker"]
    known |= letter.told_log()
    known |= {
        **letter.told_error(),
        "attempts": letter.attempts,
        "failed_at": f"{failed_at:.3f}",
    }
    return [(PREFIX + name, str(value).encode(errors="replace")) for name, value in known.items()]
