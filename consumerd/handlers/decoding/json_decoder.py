"""The decoder `json`, by msgspec (the extra `json`).

Strategy: msgspec checks UTF-8, the depth of nesting and the size of numbers while it reads, so hostile text ends in one
of its errors. With a type it also checks the shape, in the same pass.
"""

from __future__ import annotations

from typing import Any

from consumerd.base.plugins import DECODER, find
from consumerd.handlers.decoding.api import missing_extra
from consumerd.handlers.messages import Message
from consumerd.net.schemas.errors import DecodeError


class JsonDecoder:
    """JSON (RFC 8259) in UTF-8, one value for each message.

    Option: `type`, `module:attribute` of a type that msgspec can decode to, such as a `msgspec.Struct`, a dataclass or
    a TypedDict; without it values are dicts, lists, str, int, float, bool and None.
    """

    def __init__(self, type: str | None = None) -> None:  # noqa: A002 - the option's name
        try:
            import msgspec  # noqa: PLC0415 - of the extra
        except ImportError as error:
            raise missing_extra("json", "json") from error
        wanted: Any = Any
        if type is not None:
            if not isinstance(type, str) or ":" not in type:
                raise ValueError(f"type must have the form module:attribute, not {type!r}")
            wanted = find(DECODER._replace(noun="type"), type)
        self._decoder = msgspec.json.Decoder(wanted)

    def decode(self, message: Message) -> Any:
        """The value of `message`. Raises DecodeError."""
        try:
            return self._decoder.decode(message.payload)
        except RecursionError:
            raise DecodeError("it is nested too deeply") from None
        except UnicodeDecodeError as error:
            raise DecodeError(f"invalid UTF-8: {error.reason}") from None
        except ValueError as error:  # msgspec's errors are ValueErrors
            raise DecodeError(str(error)) from None
