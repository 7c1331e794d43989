"""A daemon around a handler, without the daemon: a test decides when messages come, time passes, it crashes.

Strategy: everything between a fetched batch and a committed offset is real: the handler is loaded, checked and wrapped
in its retry policy by the code of the daemon, batches are decoded from encoded message sets, and handled messages are
tracked as the daemon does. The group, the network and real pauses are left out. A `Life` stands for a
process: it begins with `start`, ends with `stop` or `crash`, and only logs and commits outlive it.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Any, Self

from consumerd.base.partition import TopicPartition
from consumerd.base.ports import Clock
from consumerd.handlers import Handler, HandlerContext, Letter, RetryPolicy, load_handler, make_handler, plain_handler
from consumerd.handlers.giving_up import KEEPING
from consumerd.handlers.handler_stages import Stages
from consumerd.testing.clock import FakeClock, PassingPauses
from consumerd.testing.errors import HarnessError
from consumerd.testing.life import Handover, Life, MemoryPartitionLog
from consumerd.testing.records import Attempt, DeliveredBatch, MemoryDeadLetters, ObservedHandler, Revocation
from consumerd.wire.compression import Codec

#: The topic that messages go to unless a test names another.
TOPIC = "t"


class HandlerHarness:
    """Drives one handler as the daemon would. `async with` starts and stops it; or call `start` and `stop`.

    `handler` is a name, as in the configuration, or what such a name stands for: a coroutine function, a handler, or a
    class or factory, which is called with `options` for each start. `policy` is that of `[handler]` in the
    configuration; its pauses take no time, its `timeout` does. `patience` is in seconds of real time: after it, a
    handler that does not return, or does not obey a cancellation, fails the test. `stages` has the decoder.

    It records `attempts` (every call of the handler), `pauses` (of the policy, seconds) and `dead_letters`. `clock` is
    the one that the handler finds in its context. Raises HandlerLoadError as the daemon would.
    """

    def __init__(
        self,
        handler: object,
        options: Mapping[str, Any] | None = None,
        *,
        policy: RetryPolicy | None = None,
        clock: FakeClock | None = None,
        group: str = "group",
        consumer_id: str = "group_test",
        patience: float = 10.0,
        seed: int = 0,
        stages: Stages | None = None,
    ) -> None:
        self.clock = clock or FakeClock()
        self.attempts: list[Attempt] = []
        self.pauses: list[float] = []
        self.dead_letters: list[Letter] = []
        self._named = handler
        self._options = dict(options or {})
        self._policy = policy or RetryPolicy()
        self._context = HandlerContext(group, consumer_id, self.clock)
        self._patience = patience
        self._rng = random.Random(seed)
        self._stages = stages or Stages()
        self._failures: deque[Exception] = deque()
        self._logs: defaultdict[TopicPartition, MemoryPartitionLog] = defaultdict(MemoryPartitionLog)
        self._committed: dict[TopicPartition, int] = {}
        self._life: Life | None = None
        self._next: Handler | None = self._build()

    # -- state

    @property
    def handler(self) -> Any:
        """The handler object of the present life, or of the one that `start` will begin, as the plugin made it."""
        return self._plain

    @property
    def started(self) -> bool:
        """Whether it lives now."""
        return self._life is not None

    @property
    def handled(self) -> list[bytes]:
        """Every payload that the handler took, in that order; one that it took twice is listed twice."""
        return [payload for attempt in self.attempts for payload in attempt.payloads[: attempt.handled]]

    def end(self, topic: str = TOPIC, partition: int = 0, *, broker: int = 0) -> int:
        """Return the end of the partition's log."""
        return self._logs[TopicPartition(topic, broker, partition)].end

    def position(self, topic: str = TOPIC, partition: int = 0, *, broker: int = 0) -> int | None:
        """Return the offset before which everything counts as handled in this life; None where nothing was claimed."""
        return None if self._life is None else self._life.position(TopicPartition(topic, broker, partition))

    def committed(self, topic: str = TOPIC, partition: int = 0, *, broker: int = 0) -> int | None:
        """The committed offset; None before the first commit."""
        return self._committed.get(TopicPartition(topic, broker, partition))

    # -- life

    async def start(self) -> None:
        """Begin a life: the first, or the next after `stop` or `crash`.

        Raises HandlerFailedError where the handler's `start` keeps failing.
        """
        if self._life is not None:
            raise HarnessError("the handler is already started; `stop` or `crash` it first")
        handler, self._next = self._next or self._build(), None
        life = self._begin_life(handler)
        try:
            await life.handler.start(self._context)
        except BaseException:
            await life.handler.stop()
            raise
        self._life = life

    async def stop(self, *, grace: float = 0.0) -> None:
        """End the life as a graceful stop does: give all partitions back (see `revoke`), commit, stop the handler.

        Nothing happens when it does not live. Raises HandlerFailedError where the handler's `stop` keeps failing.
        """
        if self._life is None:
            return
        life = self._life
        try:
            for partition in life.partitions:
                await life.revoke(partition, grace, commit=True)
        finally:
            self._life = None
            await life.handler.stop()

    async def crash(self) -> Any:
        """End the life as SIGKILL does: nothing is committed, the handler is not stopped. Returns its object.

        Its current calls are cancelled, because a coroutine cannot be killed. The caller closes the resources that a
        dead process would have closed (connections, files), on the object that is returned.
        """
        if self._life is None:
            raise HarnessError("the handler is not started, so it cannot crash")
        life, self._life = self._life, None
        await life.cancel()
        return self._plain

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -- messages

    def append(
        self,
        payloads: Iterable[bytes],
        topic: str = TOPIC,
        partition: int = 0,
        *,
        broker: int = 0,
        codec: Codec = Codec.NONE,
        magic: int = 1,
    ) -> int:
        """Put messages into the partition's log without handing them over; the offset at which they begin."""
        return self._logs[TopicPartition(topic, broker, partition)].append(payloads, codec=codec, magic=magic)

    async def deliver(
        self,
        payloads: Iterable[bytes],
        topic: str = TOPIC,
        partition: int = 0,
        *,
        broker: int = 0,
        codec: Codec = Codec.NONE,
        magic: int = 1,
    ) -> DeliveredBatch:
        """Append one message set, and deliver it as one batch until the handler takes it.

        A codec makes it one outer message.

        Messages before it in the partition that were not handled in this life come first. Raises HandlerFailedError
        when the policy says to stop (nothing can be delivered then until the next life), PartitionTakenError, and
        TimeoutError when the handler does not return.
        """
        work = await self.begin(payloads, topic, partition, broker=broker, codec=codec, magic=magic)
        return await work.result()

    async def begin(
        self,
        payloads: Iterable[bytes],
        topic: str = TOPIC,
        partition: int = 0,
        *,
        broker: int = 0,
        codec: Codec = Codec.NONE,
        magic: int = 1,
    ) -> Handover:
        """As `deliver`, but returns when the handler has got the batch: for what happens meanwhile."""
        life = self._alive()
        where = TopicPartition(topic, broker, partition)
        log = self._logs[where]
        start = log.append(payloads, codec=codec, magic=magic)
        handover = life.hand_over(where, start, log.end)
        await handover.entered()
        return handover

    async def redeliver(self, *, at_most: int | None = None) -> list[DeliveredBatch]:
        """Deliver all messages that this life has not handled yet: after `start`, those not committed before.

        Batches may be cut differently than before: at most `at_most` outermost messages each. Raises as `deliver`.
        """
        life = self._alive()
        deliveries = []
        for partition, log in sorted(self._logs.items()):
            position = await life.claim(partition)
            while position < log.end:
                batch = log.read(position, log.end, at_most=at_most)
                deliveries.append(await life.hand_over(partition, position, batch.next_offset).result())
                position = batch.next_offset
        return deliveries

    def fail(self, error: Exception | None = None, *, times: int = 1) -> None:
        """Have the next `times` attempts raise `error` (an OSError by default) in the handler's place."""
        self._failures += [error or OSError("a failure that the test injected")] * times

    # -- ownership

    async def claim(self, topic: str = TOPIC, partition: int = 0, *, broker: int = 0) -> int:
        """Claim the partition, as the daemon does before the first fetch; return the offset to resume at.

        That is the handler's `position` if it has one, else the committed offset, else 0. For claimed partitions
        `position` is not called again. Raises ContractError for a position at which no batch ended.
        """
        return await self._alive().claim(TopicPartition(topic, broker, partition))

    async def commit(self) -> None:
        """Commit the handled offsets, as the daemon does every `[commit] interval`."""
        life = self._alive()
        for partition in life.partitions:
            life.commit(partition)

    async def revoke(
        self, topic: str = TOPIC, partition: int = 0, *, broker: int = 0, grace: float = 0.0, commit: bool = True
    ) -> Revocation:
        """Take the partition away, as a rebalance does: the next delivery claims it again.

        A handler at work gets `grace` seconds of real time; then it is cancelled, as at the drain deadline, and its
        end is awaited. With `commit=False` it is as when the session was lost. Raises ContractError for a handler that
        does not obey the cancellation.
        """
        return await self._alive().revoke(TopicPartition(topic, broker, partition), grace, commit=commit)

    # -- inside

    def _build(self) -> Handler:
        named = self._named
        handler = load_handler(named, self._options) if isinstance(named, str) else make_handler(named, self._options)
        self._plain = plain_handler(handler)
        return handler

    def _begin_life(self, handler: Handler) -> Life:
        letters = MemoryDeadLetters(self.dead_letters) if self._policy.on_failure in KEEPING else None
        pauses: Clock = PassingPauses(self.clock, self.pauses)

        def wrap(observed: Handler) -> Handler:
            return self._stages.around(observed, self._policy, clock=pauses, rng=self._rng, dead_letters=letters)

        return Life(
            ObservedHandler(handler, self.attempts, self._failures),
            wrap,
            self._logs,
            self._committed,
            patience=self._patience,
            why_waiting=self._why_waiting,
        )

    def _why_waiting(self) -> str:
        if sleepers := self.clock.sleepers:
            return f"; {sleepers} sleep on the harness's clock: `await harness.clock.advance(...)`, or give auto=True"
        return ""

    def _alive(self) -> Life:
        if self._life is None:
            raise HarnessError("the handler is not started: `await harness.start()` first, or use `async with`")
        if self._life.failure is not None:
            raise HarnessError(
                f"the daemon has stopped ({self._life.failure}); `await harness.stop()` and `start()` to restart it"
            )
        return self._life
