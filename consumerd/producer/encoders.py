"""From the caller's values to the bytes of a message (spec 003, 5.1: Encoder)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from consumerd.base.native import codec as native_codec
from consumerd.producer.errors import EncodingError


@runtime_checkable
class Encoder(Protocol):
    """Makes messages. Its errors are raised by `send`, or with an asynchronous producer by `flush`."""

    def encode(self, message: Any, /) -> bytes:
        """The payload of `message`."""
        ...


class DefaultEncoder(Encoder):
    """Bytes as they are, text as UTF-8: 0.7.2's DefaultEncoder and StringEncoder in one."""

    def encode(self, message: Any, /) -> bytes:
        """Raises EncodingError for anything else."""
        if isinstance(message, str):
            try:
                return message.encode()
            except UnicodeEncodeError as error:
                raise EncodingError(f"a message cannot be encoded as UTF-8: {error.reason}.") from error
        if isinstance(message, (bytes, bytearray, memoryview)):
            return bytes(message)
        raise EncodingError(
            f"a message must be bytes or text, not {type(message).__name__}: give the producer an encoder for it."
        )


def encode_all(encoder: Encoder, messages: Sequence[Any]) -> list[bytes]:
    """The payloads of `messages`. Raises EncodingError, and what the encoder raises."""
    if type(encoder) is DefaultEncoder:
        native = native_codec()
        plain = None if native is None else native.copy_bytes(messages)
        if plain is not None:
            return plain
        return [message if type(message) is bytes else encoder.encode(message) for message in messages]
    encoded = []
    for message in messages:
        payload = encoder.encode(message)
        if not isinstance(payload, bytes):
            raise EncodingError(f"the encoder must return bytes, not {type(payload).__name__}.")
        encoded.append(payload)
    return encoded
