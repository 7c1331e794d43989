"""The handlers of the five requests, exactly as in 0.7.2 (golden notes, 1).

Strategy: a request goes in; a `BrokerReply` comes out, or None for the two that are never answered, or an error, of
which the client sees a closed connection only. A reply is a list of bytes and file ranges, so that log data never
passes through this process's memory. The order of the checks is 0.7.2's, because it decides what a refused request
leaves behind: topic name, partition, *creation of the log*, then the messages.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import structlog

from consumerd.base.errors import reason_of
from consumerd.base.ports import Clock
from consumerd.base.turns import in_turns
from consumerd.storage import CorruptLogError, OffsetOutOfLogError, SegmentSlice, StorageError
from consumerd.storage.broker.config import BrokerConfig
from consumerd.storage.broker.errors import RequestRefusedError
from consumerd.storage.broker.partitions import BrokerPartition, BrokerPartitions
from consumerd.wire.errors import InvalidTopicError, OversizeMessageError
from consumerd.wire.v07 import (
    EARLIEST,
    LATEST,
    PRODUCE_LIMITS,
    ErrorCode,
    FetchRequest,
    MultiFetchRequest,
    MultiProduceRequest,
    OffsetsRequest,
    OffsetsResponse,
    ProduceRequest,
    Request,
    check_plain_set,
    check_steps,
    fetch_response_header,
    multifetch_response_header,
    validate_new_topic,
    validate_topic,
)

logger = structlog.get_logger(__name__)

#: The names of the requests in metrics (`consumerd.storage.broker.stats.KINDS`).
_KINDS: Final[dict[type[Request], str]] = {
    ProduceRequest: "produce",
    MultiProduceRequest: "multiproduce",
    FetchRequest: "fetch",
    MultiFetchRequest: "multifetch",
    OffsetsRequest: "offsets",
}
#: Entries of a multi request that are handled before other clients have their turn.
_ENTRIES = 256
#: Characters of a refused topic name in the log.
_SHOWN = 255
#: Large sets that are checked at a time: each costs the others a step in every turn, and memory.
_CHECKS = 4


@dataclass(slots=True)
class BrokerReply:
    """A response: bytes and file ranges in order; `close` where 0.7.2 closes the connection after it."""

    parts: list[bytes | SegmentSlice]
    close: bool = False

    def release(self) -> None:
        """Release the segments."""
        for part in self.parts:
            if isinstance(part, SegmentSlice):
                part.segment.release()


class RequestHandlers:
    """The request handlers of one broker. `topic_created` is called with every topic that gets its first log."""

    def __init__(
        self,
        config: BrokerConfig,
        partitions: BrokerPartitions,
        clock: Clock,
        rng: random.Random,
        topic_created: Callable[[str], None] | None = None,
    ) -> None:
        self._config = config
        self._partitions = partitions
        self._clock = clock
        self._rng = rng
        self._topic_created = topic_created
        self.stats = partitions.stats
        self._limits = replace(PRODUCE_LIMITS, max_message_bytes=config.max_message_bytes)
        #: The partitions that messages were produced to: their names and numbers are good.
        self._targets: dict[tuple[str, int], BrokerPartition] = {}
        #: Held while a set is checked in more than one step.
        self._checking = asyncio.Semaphore(_CHECKS)

    async def handle(self, request: Request) -> BrokerReply | None:
        """Handle `request`. The caller sends the reply and then releases it.

        Raises RequestRefusedError, WireError, StorageError or CorruptLogError: the connection must be closed.
        """
        counts, began = self.stats.requests[_KINDS[type(request)]], self._clock.monotonic()
        counts.count += 1
        reply: BrokerReply | None = None
        match request:
            case ProduceRequest():
                target = self._produced_at_once(request, began)
                if target is None:
                    await self._produce(request)
                elif target.log.flush_due():
                    await target.flush()
            case FetchRequest():
                reply = self._fetch(request)
            case MultiFetchRequest():
                reply = await self._multifetch(request)
            case MultiProduceRequest():
                for number, entry in enumerate(request.produces, 1):
                    await self._produce(entry)
                    if not number % _ENTRIES:
                        await asyncio.sleep(0)
            case OffsetsRequest():
                reply = BrokerReply([self._offsets(request)])
        counts.seconds.observe(self._clock.monotonic() - began)
        return reply

    def _existing(self, topic: str, partition: int) -> BrokerPartition | None:
        """Return the requested partition, None if it has no log yet.

        Raises InvalidTopicError, RequestRefusedError, and CorruptLogError where it is out of service.
        """
        validate_topic(topic, max_length=self._config.max_topic_length)
        count = self._config.partitions_of(topic)
        if not 0 <= partition < count:
            raise RequestRefusedError(
                f"partition {partition} of topic {topic} does not exist: it must be from 0 to {count - 1}"
            )
        return self._partitions.get(topic, partition)

    def _produced_at_once(self, request: ProduceRequest, now: float) -> BrokerPartition | None:
        """As `_produce`, but the flush: for plain messages that are appended to a log in use without waiting.

        Returns the partition, or None, with nothing done: then `_produce` must do it. Raises as it does.
        """
        target = self._targets.get((request.topic, request.partition))
        if target is None or not target.appends_at_once(len(request.messages), now):
            return None
        checked = check_plain_set(request.messages, limits=self._limits)
        if checked is None:
            return None
        target.append_at_once(request.messages, checked.leaf_count, now)
        return target

    async def _produce(self, request: ProduceRequest) -> None:
        topic, partition = request.topic, request.partition
        if partition == -1:
            partition = self._partitions.choose(topic, self._config.partitions_of(topic), self._rng)
        target = self._existing(topic, partition)
        if target is None:
            self._permit_log(topic, partition)
            target, new_topic = await self._partitions.get_or_create(topic, partition)
            if new_topic and self._topic_created is not None:
                self._topic_created(topic)
        checked = check_plain_set(request.messages, limits=self._limits)
        if checked is None:
            try:
                checked = await in_turns(check_steps(request.messages, limits=self._limits), self._checking)
            except OversizeMessageError as error:
                self.stats.oversized_sets += 1
                reason = reason_of(error)
                logger.warning("oversized_message_set_dropped", topic=topic, partition=partition, reason=reason)
                return
        self._targets[topic, partition] = target
        await target.append(request.messages[: checked.valid_bytes], checked.leaf_count)

    def _permit_log(self, topic: str, partition: int) -> None:
        """Raise InvalidTopicError or RequestRefusedError if a log of this name, or any further log, is not allowed."""
        if self._partitions.is_new_topic(topic):
            validate_new_topic(topic, max_length=self._config.max_topic_length)
        most = self._config.max_logs
        if most and len(self._partitions) >= most:
            raise RequestRefusedError(
                f"partition {partition} of topic {topic!r} was not created: the limit of {most} logs is reached "
                "(max.logs)"
            )

    def _fetch(self, request: FetchRequest) -> BrokerReply:
        refusals = _Refusals()
        error, found = self._find(request, refusals)
        refusals.tell()
        reply = BrokerReply([_header(error, found)])
        _add_range(reply, found)
        return reply

    async def _multifetch(self, request: MultiFetchRequest) -> BrokerReply:
        found: list[tuple[ErrorCode, SegmentSlice | None]] = []
        refusals = _Refusals()
        try:
            for number, fetch in enumerate(request.fetches, 1):
                found.append(self._find(fetch, refusals))
                if not number % _ENTRIES:
                    await asyncio.sleep(0)
            # The total counts a negative size as it stands, as 0.7.2 does, although the answer ends at that entry.
            head = multifetch_response_header(part.length if part else 0 for _, part in found)
        except BaseException:
            _release(part for _, part in found)
            raise
        refusals.tell()
        reply = BrokerReply([head])
        for position, (error, part) in enumerate(found, 1):
            reply.parts.append(_header(error, part))
            _add_range(reply, part)
            if reply.close:
                _release(part for _, part in found[position:])
                break
        return reply

    def _find(self, request: FetchRequest, refusals: _Refusals) -> tuple[ErrorCode, SegmentSlice | None]:
        """Return error code and file range of one fetch; the segment of the range is held."""
        try:
            partition = self._existing(request.topic, request.partition)
            if partition is None:
                return ErrorCode.NONE, None
            return ErrorCode.NONE, partition.hold(request.offset, request.max_size)
        except OffsetOutOfLogError:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        except RequestRefusedError:
            code = ErrorCode.WRONG_PARTITION
        except CorruptLogError:  # logged once, at the start
            code = ErrorCode.UNKNOWN
        except (InvalidTopicError, StorageError) as error:
            refusals.add(request, error)
            code = ErrorCode.UNKNOWN
        self.stats.fetch_errors[code] += 1
        return code, None

    def _offsets(self, request: OffsetsRequest) -> bytes:
        partition = self._existing(request.topic, request.partition)
        if partition is not None:
            if request.max_number < 0:
                raise RequestRefusedError(f"the number of offsets must not be negative: {request.max_number}")
            now_ms = int(self._clock.wall() * 1000)
            offsets = partition.log.offsets_before(request.time, request.max_number, now_ms)
        else:  # 0.7.2 does not check the number here, not even a negative one
            offsets = (0,) if request.time in (LATEST, EARLIEST) else ()
        return OffsetsResponse(ErrorCode.NONE, offsets).encode()


class _Refusals:
    """The fetches of one request that failed with a reason, logged as one event."""

    __slots__ = ("_count", "_first")

    def __init__(self) -> None:
        self._count = 0
        self._first: tuple[FetchRequest, Exception] | None = None

    def add(self, request: FetchRequest, error: Exception) -> None:
        self._count += 1
        self._first = self._first or (request, error)

    def tell(self) -> None:
        if self._first is not None:
            request, error = self._first
            logger.warning(
                "fetch_failed",
                topic=request.topic[:_SHOWN],
                partition=request.partition,
                reason=reason_of(error),
                more=self._count - 1,
            )


def _header(error: ErrorCode, part: SegmentSlice | None) -> bytes:
    return fetch_response_header(error, part.length if part else 0)


def _add_range(reply: BrokerReply, part: SegmentSlice | None) -> None:
    """Add a file range; at a negative length 0.7.2 sends the header and closes the connection (golden notes, 1)."""
    if part is None:
        return
    if part.length > 0:
        reply.parts.append(part)
    else:
        part.segment.release()
        reply.close = part.length < 0


def _release(parts: Iterable[SegmentSlice | None]) -> None:
    for part in parts:
        if part is not None:
            part.segment.release()
