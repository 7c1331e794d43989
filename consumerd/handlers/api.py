"""The plugin interface: the life cycle of a handler, and the decorator for one message at a time."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from itertools import islice
from types import MethodType
from typing import Any, Protocol, Self, overload, runtime_checkable

from consumerd.base.errors import HandlerFailedError
from consumerd.base.partition import LogId, TopicPartition
from consumerd.handlers.context import HandlerContext
from consumerd.handlers.messages import Batch, Message

#: Seconds after which others have their turn, and the most messages between two looks at the clock; of those that the
#: pure codec makes, which may fail for each, fewer are made before the handler has them.
_TURN = 0.02
_MESSAGES, _MADE = 64, 16


class PartitionTakenError(HandlerFailedError):
    """A sink that owns its position found that another member has taken the partition over.

    Nothing of the batch was stored; the other member stores it. For one partition, unlike other failures, this
    does not stop the daemon: the member that gets it has lost the partition without knowing, and should drop it.
    """


class SinkPosition(int):
    """An offset at which a sink resumes, which knows the log that it is of.

    `topic_id` and `leader_epoch` are those of the last batch before it. The log that is there by now is compared with
    them, and if it is another one, `fetch.log_changed` applies. Of a plain number nothing of the kind is known.
    """

    log: LogId

    def __new__(cls, offset: int, topic_id: str | None = None, leader_epoch: int | None = None) -> Self:
        """Take what batches tell of their log."""
        made = super().__new__(cls, offset)
        made.log = LogId.from_text(topic_id, leader_epoch)
        return made


class RejectedError(Exception):
    """The message, or the batch, failed for good: further attempts are pointless, and `on_failure` applies at once.

    For what a handler knows to be permanent: a payload that is not valid, an answer such as 400. Any other exception
    is retried; `HandlerFailedError` stops the daemon with any `on_failure`.
    """


class RetryLaterError(Exception):
    """An attempt failed, and the next one should not come before `seconds` have passed (an answer such as 429).

    It counts as an attempt like any other. The pause is the policy's, or `seconds` where that is longer; what is too
    long is for the handler to decide, since `handler.max_backoff` does not shorten it.
    """

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = max(0.0, seconds)


@runtime_checkable
class Handler(Protocol):
    """Takes messages. Only `handle` must be there; a class need not inherit from this one.

    A partition's batches come in order, one at a time; those of different partitions come concurrently.
    """

    async def handle(self, batch: Batch) -> None:
        """Do the work. Returning confirms the whole batch: its offset may be committed at any time after that.

        Raise anything to be asked again later (see `consumerd.handlers.retrying`), `RetryLaterError` to say when, and
        `RejectedError` where asking again is pointless for this message; `HandlerFailedError` stops the daemon at
        once. A cancellation (drain deadline, timeout) must be obeyed, and no part of the work may continue after this
        method has raised it.
        """
        ...

    async def start(self, context: HandlerContext) -> None:
        """Prepare; called before the first batch, and again after it raised, as long as the retry policy allows."""
        return

    async def stop(self) -> None:
        """Clean up; called after the last batch, and when `start` failed half-way; after a start again if it raises."""
        return

    async def position(self, partition: TopicPartition) -> int | None:
        """Return the offset at which to resume a partition that was just claimed; None for the committed offset.

        Only for sinks that store messages and position together. It is called before the first fetch, at every
        claim, and wins over ZooKeeper; the result must be `next_offset` of a batch that was handled before, best with
        its log (`SinkPosition`): a topic may be created again, and the number then belongs to another message.
        """
        return None


class HandlerStage(Handler):
    """A handler around another one, `inner`, which it passes all calls on to that a subclass does not have itself."""

    def __init__(self, inner: Handler) -> None:
        self._inner = inner

    async def handle(self, batch: Batch) -> None:
        await self._inner.handle(batch)

    async def start(self, context: HandlerContext) -> None:
        await self._inner.start(context)

    async def stop(self) -> None:
        await self._inner.stop()

    async def position(self, partition: TopicPartition) -> int | None:
        return await self._inner.position(partition)


def keeps_positions(plugin: object) -> bool:
    """Whether a handler, as its plugin made it, answers `position` by itself."""
    own = getattr(type(plugin), "position", None)
    return own is not None and own is not Handler.position


class MessageHandler(Handler):
    """A handler made of a function for one message, `def` or `async def`; see `message_handler`."""

    #: Calls the function with each message, in order, and marks every one that it returned from. Not a method, which
    #: would be a coroutine around the other one for each batch.
    handle: Callable[[Batch], Coroutine[Any, Any, None]]  # type: ignore[assignment]

    def __init__(self, function: Callable[..., object]) -> None:
        if (
            not callable(function)
            or isinstance(function, type | staticmethod | classmethod)
            or inspect.isgeneratorfunction(function)
            or inspect.isasyncgenfunction(function)
        ):
            raise TypeError(f"@message_handler requires a `def` or `async def` of one message, not {function!r}")
        self._function = function
        self._awaited = inspect.iscoroutinefunction(function)
        self.handle = functools.partial(_one_by_one, function, self._awaited)
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        """Call the function itself, as in tests of it."""
        return self._function(*arguments)

    @overload
    def __get__(self, instance: None, owner: type) -> MessageHandler: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Callable[[Batch], Awaitable[None]]: ...
    def __get__(self, instance: object, owner: type) -> MessageHandler | Callable[[Batch], Awaitable[None]]:
        """Bind a method called `handle`: an instance gets the batch form, so that the instance is a handler."""
        if instance is None:
            return self
        return functools.partial(_one_by_one, MethodType(self._function, instance), self._awaited)


def called_by(handle: Callable[..., Any]) -> Callable[..., Any]:
    """Return what `handle` calls with one argument: the function of a `@message_handler`; else `handle` itself."""
    if isinstance(handle, functools.partial) and handle.func is _one_by_one:
        function: Callable[..., Any] = handle.args[0]
        return function
    return handle


async def _one_by_one(function: Callable[[Message], Any], awaited: bool, batch: Batch) -> None:
    """Call `function` with each message that is not marked yet, and mark it. `awaited`: it is an `async def`.

    The function may never wait for anything, and a batch may have millions of messages, so others have a turn now and
    then. Where a message takes long, the clock is read after each one.
    """
    done = batch.handled if batch.counted else 0
    lazily = type(batch) is Batch
    if done or not lazily:
        batch.mark(done)
    else:
        batch.counted = True
    turn = looked = time.monotonic()
    together = 1
    for piece in (batch.rest(done) if done else batch).message_pieces(_MESSAGES, _MADE):
        following, end = iter(piece), done + len(piece)
        del piece  # nobody holds it once its messages are handled: the native codec makes the next ones of it
        if lazily:
            batch.mark_taken(following, end)
        else:
            following = _marked(batch, following, done)
        while done < end:
            if end - done <= together:
                some, together = following, end - done
            else:
                some = islice(following, together)
            if awaited:
                for message in some:
                    await function(message)
            else:
                for message in some:
                    if (answer := function(message)) is not None:
                        await _awaited(answer)
            done += together
            batch.mark(done)
            now = time.monotonic()
            took, left = now - looked, turn + _TURN - now
            # As `_together` has it, without a call for a message that is alone.
            together = _MESSAGES if took * _MESSAGES <= together * left else _together(together, took, left)
            if now - turn > _TURN:
                await asyncio.sleep(0)
                turn = now = time.monotonic()
            looked = now


def _together(before: int, took: float, left: float) -> int:
    """The messages until the next look at the clock: as many as take what is left of the turn, by the time (seconds)
    that those `before` took.
    """
    if took * _MADE >= before * _TURN:
        return 1
    if not took or took * _MESSAGES <= before * left:
        return _MESSAGES
    return max(1, int(before * left / took))


def _marked(batch: Batch, messages: Iterator[Message], done: int) -> Iterator[Message]:
    """Yield `messages`, and mark each when the next one is taken: for batches that pass marks on."""
    for number, message in enumerate(messages, done + 1):
        yield message
        batch.mark(number)


async def _awaited(answer: object) -> None:
    """Await what a `def` returned, where that can be awaited: a decorator of a coroutine function often is a `def`."""
    if inspect.isawaitable(answer):
        await answer


def message_handler(function: Callable[..., object]) -> MessageHandler:
    """Make a handler of a function of one message: called once for each message, in the partition's order.

    A `def` costs half of what an `async def` costs. It is called on the event loop as well, so it must not block; an
    awaitable that it returns is awaited. Also works on a method `handle(self, message)` of a handler class. Messages
    handled before a failure are not delivered again while this process lives. Raises TypeError for anything but a
    function, and for generator functions.
    """
    return MessageHandler(function)
