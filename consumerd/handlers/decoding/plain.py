"""The decoders that need no package: `bytes`, which changes nothing, and `text`."""

from __future__ import annotations

import codecs

from consumerd.handlers.messages import Message
from consumerd.net.schemas.errors import DecodeError


def decode_bytes(message: Message) -> bytes:
    """The payload itself."""
    return message.payload


class TextDecoder:
    """Text. Option: `encoding`, a name that Python knows, `utf-8` by default."""

    def __init__(self, encoding: str = "utf-8") -> None:
        try:
            decoded, _ = codecs.lookup(encoding).decode(b"")
        except LookupError:
            raise ValueError(f"unknown encoding {encoding!r}") from None
        if not isinstance(decoded, str):  # such as hex, which is from bytes to bytes
            raise ValueError(f"{encoding!r} is not an encoding of text")
        self._encoding = encoding

    def decode(self, message: Message) -> str:
        """The text of `message`. Raises DecodeError."""
        try:
            return message.payload.decode(self._encoding)
        except UnicodeError as error:
            reason = getattr(error, "reason", "invalid data")
            raise DecodeError(f"invalid {self._encoding} at byte {getattr(error, 'start', 0)}: {reason}") from None
