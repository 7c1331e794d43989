"""The handler `forward` with a fault at one chosen PRODUCE request, or a crash at one of its awaits.

Strategy: the real handler gets the batches of one partition of 0.7, with its retries, and forwards to a simulated
cluster of two brokers, whose faults are those of `tests.simulation.producer_crashes`, and partitions that refuse a
batch. After a crash another process continues at the committed offset, or where the handler says; what was forwarded
from another cluster, and stands behind its own messages on the target, does not mislead it. Each message has to be on
the target, in order; repeats are those that were not committed at the crash, and with `ForwardResume.TARGET` there are
none.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from consumerd.base.partition import TopicPartition
from consumerd.handlers import Batch, HandlerContext, RetryPolicy, retrying
from consumerd.handlers.forward.handler import ForwardHandler
from consumerd.handlers.forward.identity import SourceMark
from consumerd.handlers.forward.mapping import BrokerMajorNumbering, TopicNaming
from consumerd.handlers.forward.settings import ForwardResume, ForwardSettings
from consumerd.net.client.factory import make_client
from consumerd.net.connection import ConnectionSettings
from consumerd.wire.v07 import Codec, decode_batch, encode_message_set
from consumerd.wire.v08.error_codes import ErrorCode
from tests.simulation.daemon import ProcessClock
from tests.simulation.kafka_broker import PRODUCER_ERAS
from tests.simulation.kafka_world import KafkaWorld
from tests.simulation.kernel import SimulationError
from tests.simulation.network import Link
from tests.simulation.threads import ThreadedLoop

#: What happens at a step.
ForwardFault = Literal["cut", "broker stops", "leader moves", "refused", "kill"]
#: Whether a step is a PRODUCE request, before it or before its answer, or a turn of the first process's loop.
ForwardSteps = Literal["requests", "turns"]
SOURCE = TopicPartition("t", 0, 0)
#: Messages of the source, some of which are compressed together.
_SIZES = (1, 3, 1, 2, 4, 1, 1, 3, 2, 1)
#: Of these outer messages a batch consists.
_OUTER = 3
#: Bytes of a chunk: a batch takes several.
_CHUNK = 300
#: The payload of what was forwarded from another cluster; its identity is that of this one of the outer messages.
_FOREIGN, _FOREIGN_AT = b"-1", 7


class _Source:
    """The log, and what is committed of it."""

    def __init__(self) -> None:
        self.log = b""
        #: The start of each outer message, and the end of the log.
        self.bounds = [0]
        #: The offset of each message, by its number.
        self.offsets: list[int] = []
        self.committed = 0
        numbers = itertools.count()
        for size in _SIZES:
            payloads = [b"%d" % next(numbers) for _ in range(size)]
            self.offsets += [len(self.log)] * size
            self.log += encode_message_set(payloads, codec=Codec.GZIP if size > 1 else Codec.NONE)
            self.bounds.append(len(self.log))

    def batch(self, start: int) -> Batch | None:
        """The next messages; None at the end."""
        at = self.bounds.index(start)
        end = self.bounds[min(at + _OUTER, len(self.bounds) - 1)]
        return None if start == end else Batch(SOURCE, decode_batch(self.log[start:end], start))


class _Forwarder:
    """A process that owns the partition."""

    def __init__(self, world: KafkaWorld, source: _Source, name: str, resume: ForwardResume) -> None:
        self.world = world
        self.name = name
        #: Called before each turn.
        self.watch: Callable[[], None] = lambda: None
        self.loop = ThreadedLoop(world.kernel, world.network, name, lambda step: self.watch())
        self._source = source
        self._resume = resume
        self.ended = False
        self.loop.submit(lambda: self.loop.create_task(self._main()))

    async def _main(self) -> None:
        clock, source, world = ProcessClock(self.loop), self._source, self.world
        bootstrap = [(broker.host, broker.port) for broker in world.kafka.brokers.values()]
        client = partial(
            make_client, bootstrap, ConnectionSettings(socket_timeout=2.0), client_id=self.name, tls=None, sasl=None
        )
        settings = ForwardSettings(chunk_bytes=_CHUNK, resume=self._resume, delivery_timeout=20.0)
        inner = ForwardHandler(
            lambda clock, rng: client(clock=clock, rng=rng), TopicNaming(), BrokerMajorNumbering(), settings,
            rng=world.rng,
        )  # fmt: skip
        handler = retrying(inner, RetryPolicy(max_attempts=1000, max_backoff=0.5), clock=clock, rng=world.rng)
        await handler.start(HandlerContext("g", self.name, clock))
        position = await handler.position(SOURCE)
        start = source.committed if position is None else position
        while (batch := source.batch(start)) is not None:
            await handler.handle(batch)
            if self.loop.dead:
                return
            start = source.committed = batch.next_offset
        await handler.stop()
        self.ended = True


def disturb_forward(
    number: int, fault: ForwardFault, resume: ForwardResume, steps: ForwardSteps = "requests", seed: int = 0
) -> str | None:
    """Let `fault` happen before step `number`, and tell its name; None if there are fewer.

    Raises SimulationError where a message is missing, out of order, or repeated without a reason.
    """
    with KafkaWorld(seed, brokers=2, era=PRODUCER_ERAS[-1]) as world:
        world.topic("t", 2)
        source, count = _Source(), itertools.count()
        disturbed: list[str] = []
        kept: list[int] = [source.bounds[-1]]
        first = _Forwarder(world, source, "a", resume)

        def disturb(step: str, link: Link | None) -> None:
            if disturbed or next(count) != number:
                return
            disturbed.append(step)
            if fault == "kill":
                kept[0] = source.committed
                first.loop.kill()
                world.network.close_all_of("a")
            else:
                assert link is not None
                _apply(world, link, fault)

        if steps == "turns":
            first.watch = lambda: disturb("turn", None)
        else:
            world.kafka.watcher = lambda link, step: disturb(step, link)
        world.kernel.until(
            lambda: first.ended or first.loop.dead, 60.0, what="all is forwarded, or the process is killed", every=0.01
        )
        if not disturbed:
            return None
        if fault == "kill":
            world.run(0.5)
            _forward_from_elsewhere(world, source)
            second = _Forwarder(world, source, "b", resume)
            world.kernel.until(lambda: second.ended, 60.0, what="the next process has forwarded the rest", every=0.01)
        _check(world, source, kept[0], resume)
        return disturbed[0]


def _forward_from_elsewhere(world: KafkaWorld, source: _Source) -> None:
    """Another cluster's topic of the same name has the same messages, and is ahead."""
    offset = source.bounds[_FOREIGN_AT]
    payload = b"%d" % source.offsets.index(offset)
    log = world.kafka.log(world.partitions[0])
    log.headers[len(log.payloads)] = SourceMark(SOURCE, "elsewhere").headers(offset, 0, payload)
    log.payloads.append(_FOREIGN)


def _apply(world: KafkaWorld, link: Link, fault: ForwardFault) -> None:
    kafka = world.kafka
    if fault == "refused":  # with an error that the producer does not retry
        kafka.refusals = {partition: [ErrorCode.UNKNOWN] for partition in world.partitions}
        return
    broker = next(number for number, each in kafka.brokers.items() if (each.host, each.port) == link.address)
    if fault == "cut":
        link.cut()
    elif fault == "broker stops":
        kafka.stop_broker(broker)
        world.kernel.after(0.3, lambda: kafka.take_over(world.rng))
    else:
        for partition in world.partitions:
            if kafka.log(partition).leader == broker:
                kafka.lead(partition, 1 - broker)


def _check(world: KafkaWorld, source: _Source, committed: int, resume: ForwardResume) -> None:
    """`committed`: the offset at the crash; messages behind it may be repeated."""
    logs = [
        [int(payload) for payload in world.kafka.log(each).payloads if payload != _FOREIGN] for each in world.partitions
    ]
    log: list[Any] = logs[0]
    if any(logs[1:]):
        raise SimulationError(f"messages are in another partition than that of their source: {logs}")
    first = list(dict.fromkeys(log))
    missing = set(range(len(source.offsets))) - set(first)
    if missing:
        raise SimulationError(f"not on the target: {sorted(missing)}")
    if first != sorted(first):
        raise SimulationError(f"out of order on the target: {log}")
    repeated = [message for message, times in Counter(log).items() if times > 1]
    wrong = [each for each in repeated if source.offsets[each] < committed or resume is ForwardResume.TARGET]
    if wrong:
        raise SimulationError(f"repeated on the target, though committed or known: {wrong} in {log}")
