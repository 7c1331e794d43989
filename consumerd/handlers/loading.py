"""From a configured name and options to a handler, or to an error of one sentence.

Strategy: the object of that name is found and called by `consumerd.base.plugins`. It may be a coroutine function
for batches, a handler, or anything that makes a handler when called with the options; methods that it lacks are added.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from types import FunctionType
from typing import Any, Final

from consumerd.base.errors import HandlerLoadError
from consumerd.base.partition import TopicPartition
from consumerd.base.plugins import HANDLER, call, find, listing
from consumerd.handlers.api import Handler, called_by
from consumerd.handlers.context import HandlerContext
from consumerd.handlers.messages import Batch
from consumerd.handlers.secrets import with_secret_files

#: The methods of a handler, and how many arguments they are called with.
_METHODS: Final = {"handle": 1, "start": 1, "stop": 0, "position": 1}


class _Completed(Handler):
    """A handler that has only some of the methods, or is a bare `async def`, with the defaults of the others added."""

    def __init__(self, plain: object, handle: Callable[[Batch], Awaitable[None]]) -> None:
        self.plain = plain
        self._handle = handle

    async def handle(self, batch: Batch) -> None:
        await self._handle(batch)

    async def start(self, context: HandlerContext) -> None:
        if method := getattr(self.plain, "start", None):
            await method(context)

    async def stop(self) -> None:
        if method := getattr(self.plain, "stop", None):
            await method()

    async def position(self, partition: TopicPartition) -> int | None:
        if method := getattr(self.plain, "position", None):
            answer: int | None = await method(partition)
            return answer
        return None

    def __repr__(self) -> str:
        return repr(self.plain)


def load_handler(name: str, options: Mapping[str, Any] | None = None) -> Handler:
    """Find, import and build the handler that the configuration names.

    `name` is an entry point of the group `consumerd.handlers` or `module:attribute`; `options` are keyword arguments
    for a class or factory. Nothing is started. Raises HandlerLoadError.
    """
    return make_handler(find(HANDLER, name), options, name=name)


def make_handler(found: object, options: Mapping[str, Any] | None = None, *, name: str = "handler") -> Handler:
    """Make a handler of the object that a plugin's name stands for, as `load_handler` does.

    `found` is a coroutine function, a handler, or a class or factory that is called with `options`; `name` is what
    errors call it. Raises HandlerLoadError.
    """
    return _build(name, found, dict(options or {}))


def plain_handler(handler: Handler) -> object:
    """Return the plugin's own object: `handler` itself, or the wrapped object if methods had to be added to it."""
    return handler.plain if isinstance(handler, _Completed) else handler


def _build(name: str, found: object, options: dict[str, Any]) -> Handler:
    if not isinstance(found, type) and (hasattr(found, "handle") or inspect.iscoroutinefunction(found)):
        if options:
            raise HandlerLoadError(
                f"handler {name!r} takes no options, because it is a "
                f"{'handler' if hasattr(found, 'handle') else 'function'} and not a class or factory; "
                f"{listing(options)} was given."
            )
        return _complete(name, found)
    if not callable(found):
        raise HandlerLoadError(
            f"handler {name!r} is of type {type(found).__name__}: it should be an `async def`, "
            "a handler with `async def handle(self, batch)`, or a class or factory of handlers."
        )
    if not options and _is_plain(found):
        raise HandlerLoadError(
            f"handler {name!r} is a plain function: one that takes batches must be an `async def`, and a factory of "
            "handlers needs its options."
        )
    return _complete(name, call(HANDLER, name, found, with_secret_files(name, found, options)))


def _complete(name: str, thing: object) -> Handler:
    """`thing` with all methods of a handler."""
    if inspect.iscoroutine(thing):
        thing.close()
    handle = getattr(thing, "handle", None)
    if handle is None and inspect.iscoroutinefunction(thing):
        _require_arguments(f"handler {name!r}", thing, 1)
        return _Completed(thing, thing)
    if handle is None:
        raise HandlerLoadError(f"handler {name!r} returned a {type(thing).__name__}, which has no method `handle`.")
    for method, arguments in _METHODS.items():
        found = getattr(thing, method, None)
        if found is None:
            continue
        if not _is_async(found):
            raise HandlerLoadError(f"handler {name!r}: its method `{method}` must be an `async def`.")
        _require_arguments(f"handler {name!r}: its method `{method}`", called_by(found), arguments)
    if isinstance(thing, Handler):
        return thing
    return _Completed(thing, handle)


def _require_arguments(what: str, function: Callable[..., object], count: int) -> None:
    """Raise HandlerLoadError unless a function can be called with `count` arguments.

    Else each message would fail, and would be skipped or be a dead letter where the policy says so.
    """
    try:
        inspect.signature(function).bind(*[None] * count)
    except ValueError:  # some that are written in C have no signature
        return
    except TypeError as error:
        raise HandlerLoadError(f"{what} must take {'one argument' if count else 'no argument'}: {error}.") from error


def _is_plain(found: Callable[..., object]) -> bool:
    """Whether it is a function that has to be called with one argument, as a handler is with a batch."""
    if type(found) is not FunctionType:
        return False
    one, *others = *inspect.signature(found).parameters.values(), None
    return one is not None and others == [None] and one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD


def _is_async(method: object) -> bool:
    return inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(getattr(method, "__call__", None))  # noqa: B004
