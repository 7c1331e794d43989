"""The interface of decoders, and how the one that the configuration names is found and made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from consumerd.base.errors import HandlerLoadError
from consumerd.base.plugins import DECODER, call, find
from consumerd.base.ports import Clock
from consumerd.handlers.messages import Message

#: The decoder that leaves messages as they are.
BYTES: Final = "bytes"


class NotReadyError(Exception):
    """A decoder needs something first that it does not have yet, such as a schema: it can be waited for."""

    async def load(self, clock: Clock) -> None:
        """Return when decoding the message again has a result, whatever it is."""
        raise NotImplementedError


class Decoder(Protocol):
    """Makes the value of a message. Must not block, and must not change anything: a message may be decoded twice."""

    def decode(self, message: Message) -> Any:
        """The value of `message`, whose payload is never None. Raises DecodeError; any exception counts as one.

        NotReadyError is none: it is waited for, and the message decoded again.
        """
        ...


class _FunctionDecoder:
    """A decoder from a function of a message."""

    def __init__(self, function: Callable[[Message], Any]) -> None:
        self.decode = function


def load_decoder(name: str, options: Mapping[str, Any] | None = None) -> Decoder:
    """Find, import and make the decoder that the configuration names.

    `name` is an entry point of the group `consumerd.decoders` or `module:attribute`. Raises HandlerLoadError.
    """
    return make_decoder(find(DECODER, name), options, name=name)


def make_decoder(found: object, options: Mapping[str, Any] | None = None, *, name: str = "decoder") -> Decoder:
    """Make a decoder of what a plugin's name stands for.

    `found` is a function of one message, an object with a method `decode(message)`, or a class or factory of such,
    which is called with `options`. `name` is what errors call it. Raises HandlerLoadError.
    """
    given = dict(options or {})
    if isinstance(found, type) or (given and callable(found)):
        found = call(DECODER, name, found, given)
    elif given:
        raise HandlerLoadError(f"decoder {name!r} takes no options, because it is not a class or factory.")
    decode = getattr(found, "decode", None)
    if decode is None and callable(found):
        decode = found
    if not callable(decode):
        raise HandlerLoadError(
            f"decoder {name!r} is of type {type(found).__name__}: it should be a function of one message, or a class "
            "with a method `decode(self, message)`."
        )
    if inspect.iscoroutinefunction(decode):
        raise HandlerLoadError(f"decoder {name!r} must be a `def`, not an `async def`.")
    return _FunctionDecoder(decode)


def missing_extra(name: str, extra: str) -> HandlerLoadError:
    """The error of a decoder whose package is not installed."""
    return HandlerLoadError(f"the decoder {name!r} needs the extra `{extra}`: pip install 'consumerd[{extra}]'.")
