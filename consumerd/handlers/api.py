"""What a handler sees: batches and messages, the life cycle of a handler, and the decorator for one message at a time.

Strategy: the batch is the unit, because handing over costs the same for one message as for ten thousand. `Batch` is
a view of decoded messages: the payloads are there as a list, identities are made only when asked for. A handler that
works through a batch in order may `mark` how far it came; whoever retries, drains or commits then goes on from there.

A message's identity is (topic, broker, partition, offset of its outermost message, index); see golden notes, 2.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, overload, runtime_checkable

from consumerd.errors import HandlerFailedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from consumerd.partition import TopicPartition
    from consumerd.ports import Clock


class PartitionTakenError(HandlerFailedError):
    """A sink that owns its position found that another member has taken the partition over.

    Nothing of the batch was stored; the other member stores it. For one partition, unlike other failures, this is
    no reason to stop: whoever gets it has lost the partition without knowing, and should drop it.
    """


class Identity(NamedTuple):
    """What tells a message from every other one of the cluster: equal payloads may be different messages."""

    topic: str
    broker: int
    partition: int
    offset: int
    index: int  # type: ignore[assignment]  # shadows tuple.index: the word is the protocol's


class Message(NamedTuple):
    """One message. `offset` is that of its outermost message, `index` counts the leaves of a compressed one from 0.

    `next_offset` is the position to commit once this message and all before it are handled: of the leaves of a
    compressed message only the last moves it.
    """

    partition: TopicPartition
    offset: int
    index: int  # type: ignore[assignment]
    next_offset: int
    payload: bytes

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.partition.topic

    @property
    def broker(self) -> int:
        """The id of the broker that holds the partition."""
        return self.partition.broker

    @property
    def identity(self) -> Identity:
        """Unique in the cluster, and the same at every delivery of this message: the key to deduplicate by."""
        return Identity(*self.partition, self.offset, self.index)


#: As `Message`, from a tuple of its fields; saves a call for each message.
_message = functools.partial(tuple.__new__, Message)


class Content(Protocol):
    """What a batch is made of: `consumerd.wire.v07.MessageBatch`, or the like of another protocol."""

    @property
    def payloads(self) -> list[bytes]:
        """The leaves' payloads, in order."""
        ...

    @property
    def start_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    def messages(self) -> Iterator[tuple[int, int, int, bytes]]:
        """(offset, index, next_offset, payload) of every leaf, in order."""
        ...

    def prefix(self, count: int, /) -> int:
        """The position to commit after the first `count` leaves."""
        ...


class Batch(Sequence[bytes]):
    """Consecutive messages of one partition: a sequence of payloads that knows where they come from.

    `partition` names topic, broker and partition. The messages fill the range `start_offset` to `next_offset` of the
    partition's log, and always whole outermost messages of it, except after `rest`.
    """

    __slots__ = ("_content", "_counted", "_first", "_handled", "_length", "partition")

    def __init__(self, partition: TopicPartition, content: Content, *, first: int = 0) -> None:
        self.partition = partition
        self._content = content
        self._first = first
        self._length = len(content.payloads) - first
        self._handled = 0
        self._counted = False

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.partition.topic

    @property
    def broker(self) -> int:
        """The id of the broker that holds the partition."""
        return self.partition.broker

    @property
    def payloads(self) -> list[bytes]:
        """The payloads as a list. It may be the batch's own: do not change it."""
        return self._content.payloads[self._first :] if self._first else self._content.payloads

    @property
    def start_offset(self) -> int:
        """Where the range begins; inside a compressed message (after `rest`), where that message begins."""
        return self._content.prefix(self._first) if self._first else self._content.start_offset

    @property
    def next_offset(self) -> int:
        """The position to commit when all messages are handled."""
        return self._content.next_offset

    @property
    def handled(self) -> int:
        """How many messages from the front are handled, as far as the handler told with `mark`."""
        return self._handled

    @property
    def counted(self) -> bool:
        """Whether the handler counts: if so, it goes in order, and a failure is that of the message at `handled`."""
        return self._counted

    def mark(self, handled: int) -> None:
        """Tell that the first `handled` messages are handled and need not be handed over again."""
        if not self._handled <= handled <= self._length:
            raise ValueError(f"cannot mark {handled} of {self._length} messages after {self._handled}")
        self._handled = handled
        self._counted = True

    def prefix(self, count: int) -> int:
        """The position to commit after the first `count` messages."""
        return self.next_offset if count >= self._length else self._content.prefix(self._first + count)

    def rest(self, count: int) -> Batch:
        """The batch without its first `count` messages, for handing over the remainder. Shares the payloads."""
        return Batch(self.partition, self._content, first=self._first + count) if count else self

    def messages(self) -> Iterator[Message]:
        """The messages with their identities, made as they are asked for."""
        return map(_message, map((self.partition,).__add__, islice(self._content.messages(), self._first, None)))

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, position: int) -> bytes: ...
    @overload
    def __getitem__(self, position: slice) -> list[bytes]: ...
    def __getitem__(self, position: int | slice) -> bytes | list[bytes]:
        return self.payloads[position]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.payloads)

    def __repr__(self) -> str:
        return f"<Batch {self.partition} {self.start_offset}-{self.next_offset}: {self._length} messages>"


@dataclass(frozen=True, slots=True)
class HandlerContext:
    """What a handler may know about the member that it works for."""

    group: str
    consumer_id: str
    clock: Clock


@runtime_checkable
class Handler(Protocol):
    """Takes messages. Only `handle` must be there; a class need not inherit from this one.

    A partition's batches come in order, one at a time; those of different partitions come concurrently.
    """

    async def handle(self, batch: Batch) -> None:
        """Do the work. Returning confirms the whole batch: its offset may be committed at any time after that.

        Raise anything to be asked again later (see `consumerd.handlers.retrying`); raise `HandlerFailedError` where
        asking again is pointless: it stops the daemon at once. A cancellation (drain deadline, timeout) must be
        obeyed, and nothing of the work may go on after it came out of here.
        """
        ...

    async def start(self, context: HandlerContext) -> None:
        """Prepare; called once, before the first batch."""
        return

    async def stop(self) -> None:
        """Clean up; called once, after the last batch, also when `start` failed half-way."""
        return

    async def position(self, partition: TopicPartition) -> int | None:
        """Where to go on with a partition that was just claimed; None leaves it to the committed offset.

        Only for sinks that store messages and position together. It is asked before the first fetch, at every
        claim, and wins over ZooKeeper; the answer must be `next_offset` of a batch that was handled before.
        """
        return None


class MessageHandler(Handler):
    """A handler made of a coroutine function for one message; see `message_handler`."""

    def __init__(self, function: Callable[..., Awaitable[None]]) -> None:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"@message_handler needs an `async def`, and {function!r} is none")
        self._function = function
        functools.update_wrapper(self, function)

    async def handle(self, batch: Batch) -> None:
        """Call the function with each message, in order, and mark every one that it returned from."""
        await _one_by_one(self._function, batch)

    def __call__(self, *arguments: Any) -> Awaitable[None]:
        """Call the function itself, as in tests of it."""
        return self._function(*arguments)

    @overload
    def __get__(self, instance: None, owner: type) -> MessageHandler: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Callable[[Batch], Awaitable[None]]: ...
    def __get__(self, instance: object, owner: type) -> MessageHandler | Callable[[Batch], Awaitable[None]]:
        """On a method called `handle`: of an instance it is the batch form, so that the instance is a handler."""
        if instance is None:
            return self
        return functools.partial(_one_by_one, functools.partial(self._function, instance))


async def _one_by_one(function: Callable[[Message], Awaitable[None]], batch: Batch) -> None:
    done = batch.handled
    batch.mark(done)
    for count, message in enumerate(islice(batch.messages(), done, None), done + 1):
        await function(message)
        batch.mark(count)


def message_handler(function: Callable[..., Awaitable[None]]) -> MessageHandler:
    """Make a handler of `async def function(message)`: called once for each message, in the partition's order.

    Also works on a method `async def handle(self, message)` of a handler class. What was handled before a failure is
    not handed over again while this process lives. Raises TypeError for anything but a coroutine function.
    """
    return MessageHandler(function)
