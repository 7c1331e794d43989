"""From a configured name and options to a handler, or to one sentence that says what is wrong.

Strategy: three steps, each with its own errors: find the attribute (entry-point group `consumerd.handlers`, or
`module:attribute`), import it, build the handler. What was found may be a coroutine function for batches, a handler,
or anything that makes a handler when called with the options. Options are compared with the signature before the
call, so that a misspelt one is named with its nearest neighbour.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from importlib.metadata import EntryPoint, entry_points
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from consumerd.errors import HandlerLoadError
from consumerd.handlers.api import Handler
from consumerd.handlers.secret_options import with_secret_files

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from consumerd.handlers.api import HandlerContext
    from consumerd.handlers.messages import Batch
    from consumerd.partition import TopicPartition

log = structlog.get_logger(__name__)

GROUP = "consumerd.handlers"


class _HasHandle(Protocol):
    async def handle(self, batch: Batch) -> None: ...


class _Completed(Handler):
    """A handler that has only some of the methods, with the others' defaults added."""

    def __init__(self, inner: _HasHandle) -> None:
        self._inner = inner

    @property
    def plain(self) -> object:
        return self._inner

    async def handle(self, batch: Batch) -> None:
        await self._inner.handle(batch)

    async def start(self, context: HandlerContext) -> None:
        if method := getattr(self._inner, "start", None):
            await method(context)

    async def stop(self) -> None:
        if method := getattr(self._inner, "stop", None):
            await method()

    async def position(self, partition: TopicPartition) -> int | None:
        if method := getattr(self._inner, "position", None):
            answer: int | None = await method(partition)
            return answer
        return None

    def __repr__(self) -> str:
        return repr(self._inner)


class _FunctionHandler(Handler):
    """A bare `async def function(batch)`."""

    def __init__(self, function: Callable[[Batch], Awaitable[None]]) -> None:
        self._function = function

    @property
    def plain(self) -> object:
        return self._function

    async def handle(self, batch: Batch) -> None:
        await self._function(batch)

    def __repr__(self) -> str:
        return repr(self._function)


def load_handler(name: str, options: Mapping[str, Any] | None = None) -> Handler:
    """Find, import and build the handler that the configuration names.

    `name` is an entry point of the group `consumerd.handlers` or `module:attribute`; `options` are keyword arguments
    for a class or factory. Nothing is started. Raises HandlerLoadError.
    """
    return make_handler(_load(name), options, name=name)


def make_handler(found: object, options: Mapping[str, Any] | None = None, *, name: str = "handler") -> Handler:
    """Make a handler of what a plugin's name stands for, as `load_handler` does.

    `found` is a coroutine function, a handler, or a class or factory that is called with `options`; `name` is what
    errors call it. Raises HandlerLoadError.
    """
    return _build(name, found, dict(options or {}))


def find_plugin(name: str) -> object:
    """What the configured name stands for, imported and not called. Raises HandlerLoadError."""
    return _load(name)


def plain_handler(handler: Handler) -> object:
    """What the plugin gave: `handler` itself, or what is inside if methods had to be added to it."""
    return handler.plain if isinstance(handler, (_Completed, _FunctionHandler)) else handler


def _load(name: str) -> object:
    if ":" in name:
        module, _, attribute = name.partition(":")
        parts = [*module.split("."), *attribute.split(".")]
        if not all(part.isidentifier() for part in parts):
            raise HandlerLoadError(f"handler {name!r} is not of the form module:attribute.")
        return _import(name, module, attribute)
    point = _entry_point(name)
    if not point.attr:
        raise HandlerLoadError(f"handler {name!r}: its package names {point.value!r}, which is not module:attribute.")
    return _import(name, point.module, point.attr)


def _entry_point(name: str) -> EntryPoint:
    installed = entry_points(group=GROUP)
    found = {point.value: point for point in installed if point.name == name}
    if len(found) > 1:
        raise HandlerLoadError(
            f"handler {name!r} is provided by several packages ({_listing(found)}): "
            "uninstall all but one, or name yours as module:attribute."
        )
    if not found:
        raise HandlerLoadError(f"unknown handler {name!r}{_instead(name, {point.name for point in installed})}")
    return next(iter(found.values()))


def _import(name: str, module: str, attribute: str) -> object:
    try:
        found: object = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            raise HandlerLoadError(
                f"handler {name!r}: no module named {error.name!r}; is its package installed, or on PYTHONPATH?"
            ) from error
        raise HandlerLoadError(f"handler {name!r}: importing {module!r} failed: {_brief(error)}") from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise HandlerLoadError(
                f"handler {name!r}: {module!r} has no attribute {part!r}{_instead(part, dir(found), listing=False)}"
            ) from error
    return found


def _build(name: str, found: object, options: dict[str, Any]) -> Handler:
    if not isinstance(found, type) and (hasattr(found, "handle") or inspect.iscoroutinefunction(found)):
        if options:
            raise HandlerLoadError(
                f"handler {name!r} takes no options, because it is a "
                f"{'handler' if hasattr(found, 'handle') else 'function'} and not a class or factory; "
                f"{_listing(options)} was given."
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
    options = with_secret_files(name, found, options)
    _check_options(name, found, options)
    try:
        handler = found(**options)
    except SystemExit as error:
        raise HandlerLoadError(f"handler {name!r} called sys.exit({error.code!r}) in its constructor.") from error
    except HandlerLoadError:
        raise
    except Exception as error:
        raise HandlerLoadError(f"handler {name!r} refused its options: {_brief(error)}") from error
    return _complete(name, handler)


def _complete(name: str, thing: object) -> Handler:
    """`thing` with all methods of a handler."""
    if inspect.iscoroutine(thing):
        thing.close()
    handle = getattr(thing, "handle", None)
    if handle is None and inspect.iscoroutinefunction(thing):
        return _FunctionHandler(thing)
    if handle is None:
        raise HandlerLoadError(f"handler {name!r} returned a {type(thing).__name__}, which has no method `handle`.")
    for method in ("handle", "start", "stop", "position"):
        found = getattr(thing, method, None)
        if found is not None and not _is_async(found):
            raise HandlerLoadError(f"handler {name!r}: its method `{method}` must be an `async def`.")
    if isinstance(thing, Handler):
        return thing
    return _Completed(thing)  # type: ignore[arg-type]  # checked above


def _is_plain(found: Callable[..., object]) -> bool:
    """Whether it is a function that has to be called with one argument, as a handler is with a batch."""
    if type(found) is not FunctionType:
        return False
    one, *others = *inspect.signature(found).parameters.values(), None
    return one is not None and others == [None] and one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD


def _is_async(method: object) -> bool:
    return inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(getattr(method, "__call__", None))  # noqa: B004


def _check_options(name: str, factory: Callable[..., object], options: Mapping[str, Any]) -> None:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some factories written in C have no signature; the call itself will tell
        log.debug("handler_signature_unavailable", handler=name)
        return
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for option in options:
            if option not in named:
                raise HandlerLoadError(f"handler {name!r} has no option {option!r}{_instead(option, named)}")
    missing = [p.name for p in named.values() if p.default is p.empty and p.name not in options]
    if missing:
        raise HandlerLoadError(f"handler {name!r} requires the option {missing[0]!r}.")


def _instead(wrong: str, known: Iterable[str], *, listing: bool = True) -> str:
    """The end of a sentence about an unknown name."""
    names = sorted(known)
    nearest = difflib.get_close_matches(wrong, names, n=1)
    hint = f", did you mean {nearest[0]!r}?" if nearest else "."
    if not listing:
        return hint
    return f"{hint} There {'are' if len(names) > 1 else 'is'} {_listing(names) or 'none'}."


def _listing(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _brief(error: BaseException) -> str:
    """An error of a plugin's code on one line, with its type."""
    problems = getattr(error, "errors", None)
    if callable(problems):  # pydantic's ValidationError, whose text has many lines
        first = problems()[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}."
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}".rstrip(": .") + "."
