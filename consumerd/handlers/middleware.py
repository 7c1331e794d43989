"""Middleware: hooks around each call of a handler.

Strategy: one stage directly around the handler, inside its timeout and its retries, so an attempt is a call, and what a
hook raises is a failure like the handler's own. Hooks nest: `before` in the order of the configuration, `after` and
`error` in the opposite one, and only of those whose `before` has returned. A hook never hides why a call failed: what
an `error` hook raises is logged.

    before 1, before 2, handle, after 2, after 1        handle raises: error 2, error 1
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from consumerd.base.errors import HandlerLoadError
from consumerd.base.plugins import MIDDLEWARE, call, find
from consumerd.handlers.api import Handler, HandlerStage
from consumerd.handlers.context import HandlerContext
from consumerd.handlers.messages import Batch
from consumerd.handlers.tracebacks import brief, short_traceback

log = structlog.get_logger(__name__)

_HOOKS: Final = ("before", "after", "error")
_METHODS: Final = ("start", *_HOOKS, "stop")


@dataclass(slots=True)
class HandlerCall:
    """One call of the handler, with a batch or the rest of it after a failure; the same for all of its hooks."""

    batch: Batch
    #: On the member's clock, in seconds.
    began: float


class Middleware(Protocol):
    """Hooks around the calls of a handler, all optional coroutines. Calls of different partitions come concurrently."""

    async def start(self, context: HandlerContext) -> None:
        """Prepare; before the handler's `start`, and again after a failure."""
        ...

    async def before(self, call: HandlerCall) -> None:
        """Before the handler gets the batch. Raising fails the call: the handler does not get it."""
        ...

    async def after(self, call: HandlerCall) -> None:
        """The handler returned. Raising fails the call: messages that the handler did not mark are delivered again."""
        ...

    async def error(self, call: HandlerCall, error: BaseException) -> None:
        """The call failed, or was cancelled (CancelledError): return soon then. The failure is raised afterwards."""
        ...

    async def stop(self) -> None:
        """Clean up; after the handler's `stop`."""
        ...


@dataclass(frozen=True, slots=True)
class NamedMiddleware:
    """Middleware, and what errors and logs call it."""

    name: str
    plugin: Any


def load_middleware(name: str, options: Mapping[str, Any] | None = None) -> NamedMiddleware:
    """Find, import and make the middleware that the configuration names.

    `name` is an entry point of the group `consumerd.middleware` or `module:attribute`. Raises HandlerLoadError.
    """
    return make_middleware(find(MIDDLEWARE, name), options, name=name)


def make_middleware(
    found: object, options: Mapping[str, Any] | None = None, *, name: str = "middleware"
) -> NamedMiddleware:
    """Make middleware of the object that a plugin's name stands for: one with hooks, or a class or factory of such.

    A class or factory is called with `options`. Raises HandlerLoadError.
    """
    given = dict(options or {})
    if isinstance(found, type) or (callable(found) and not _hooks(found)):
        found = call(MIDDLEWARE, name, found, given)
    elif given:
        raise HandlerLoadError(f"middleware {name!r} takes no options, because it is not a class or factory.")
    if not _hooks(found):
        raise HandlerLoadError(
            f"middleware {name!r} is of type {type(found).__name__}: it should have a method before, after or error."
        )
    for method in _METHODS:
        hook = getattr(found, method, None)
        if hook is not None and not inspect.iscoroutinefunction(hook):
            raise HandlerLoadError(f"middleware {name!r}: its method `{method}` must be an `async def`.")
    return NamedMiddleware(name, found)


def _hooks(found: object) -> bool:
    return any(hasattr(found, hook) for hook in _HOOKS)


class WithMiddleware(HandlerStage):
    """Calls `inner` between the hooks of `middleware`, the first of which is the outermost."""

    def __init__(self, inner: Handler, middleware: Sequence[NamedMiddleware]) -> None:
        super().__init__(inner)
        self._middleware = tuple(middleware)
        self._context: HandlerContext | None = None

    async def start(self, context: HandlerContext) -> None:
        self._context = context
        for each in self._middleware:
            if start := getattr(each.plugin, "start", None):
                await start(context)
        await self._inner.start(context)

    async def stop(self) -> None:
        """Stop the handler, then all middleware, even if one of them raises; the first failure is raised."""
        failure: Exception | None = None
        stops = [self._inner.stop, *(getattr(each.plugin, "stop", None) for each in reversed(self._middleware))]
        for stop in stops:
            try:
                if stop is not None:
                    await stop()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def handle(self, batch: Batch) -> None:
        """Call the hooks and the handler. Raises the error of the handler, else that of a hook."""
        assert self._context is not None, "it was started"
        call = HandlerCall(batch, self._context.clock.monotonic())
        entered: list[NamedMiddleware] = []
        try:
            for each in self._middleware:
                if before := getattr(each.plugin, "before", None):
                    await before(call)
                entered.append(each)
            await self._inner.handle(batch)
            while entered:
                if after := getattr(entered[-1].plugin, "after", None):
                    await after(call)
                entered.pop()
        except BaseException as error:
            await self._failed(call, error, entered)
            raise

    async def _failed(self, call: HandlerCall, failure: BaseException, entered: list[NamedMiddleware]) -> None:
        for each in reversed(entered):
            try:
                if hook := getattr(each.plugin, "error", None):
                    await hook(call, failure)
            except Exception as error:
                log.warning(
                    "middleware_failed",
                    middleware=each.name,
                    partition=str(call.batch.partition),
                    reason=brief(error),
                    traceback=short_traceback(error),
                )
