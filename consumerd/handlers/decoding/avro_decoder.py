"""The decoder `avro`, by fastavro (the extra `avro`): bare binary values, or single-object encoding.

Strategy: schemas come from files, and `consumerd.net.schemas.avro` reads values with them.

The format is that of the Avro specification 1.11, "Binary encoding" and "Single-object encoding".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from consumerd.handlers.decoding.api import missing_extra
from consumerd.handlers.messages import Message
from consumerd.net.schemas.avro import parsed_schemas, read_value
from consumerd.net.schemas.errors import DecodeError

#: Single-object encoding: how a message begins, and bytes of the schema's fingerprint behind it.
_MARKER: Final = b"\xc3\x01"
_FINGERPRINT: Final = 8


class AvroDecoder:
    """Avro. Options:

    `schema`: the file of the schema (JSON, `.avsc`), or a table of such files by topic. `encoding`: `schemaless` for
    bare values (the default), or `single_object`, where each message names its schema by a fingerprint.
    `writer_schemas`: with `single_object`, files of other schemas that messages may have been written with; their
    values are resolved to `schema` by Avro's rules. Relative paths start at the daemon's working directory.
    """

    def __init__(
        self, schema: str | Mapping[str, str], encoding: str = "schemaless", writer_schemas: Sequence[str] = ()
    ) -> None:
        try:
            import fastavro  # noqa: F401, PLC0415 - of the extra
        except ImportError as error:
            raise missing_extra("avro", "avro") from error
        if encoding not in ("schemaless", "single_object"):
            raise ValueError(f"encoding must be schemaless or single_object, not {encoding!r}")
        if writer_schemas and encoding != "single_object":
            raise ValueError('writer_schemas need encoding = "single_object": other messages do not name their schema')
        if isinstance(writer_schemas, str):
            raise ValueError(f"writer_schemas must be a list of files, not {writer_schemas!r}")
        by_topic = {"": schema} if isinstance(schema, str) else dict(schema)
        if not by_topic:
            raise ValueError("schema must name a file, or a file for each topic")
        self._schemas = {topic: read_schema(Path(file)) for topic, file in by_topic.items()}
        self._default = self._schemas.get("") if isinstance(schema, str) else None
        self._writers: dict[bytes, Any] = {}
        if encoding == "single_object":
            known = [*self._schemas.values(), *(read_schema(Path(file)) for file in writer_schemas)]
            self._writers = {_fingerprint(each): each for each in known}

    def decode(self, message: Message) -> Any:
        """The value of `message`. Raises DecodeError."""
        schema = self._default or self._schemas.get(message.topic)
        if schema is None:
            raise DecodeError(f"there is no schema of topic {message.topic}")
        payload, writer, start = message.payload, schema, 0
        if self._writers:
            start = len(_MARKER) + _FINGERPRINT
            if not payload.startswith(_MARKER) or len(payload) < start:
                raise DecodeError("it does not begin with the marker c301 and a fingerprint")
            fingerprint = payload[len(_MARKER) : start]
            found = self._writers.get(fingerprint)
            if found is None:
                raise DecodeError(f"unknown schema with the fingerprint {fingerprint.hex()}: add it to writer_schemas")
            writer = found
        return read_value(payload, start, writer, None if writer is schema else schema)


def read_schema(path: Path) -> Any:
    """The schema in a file, parsed. Raises ValueError with the file."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ValueError(f"the schema {path} cannot be read: {error.strerror}") from error
    return parsed_schemas([text], f"the schema {path}")


def _fingerprint(schema: Any) -> bytes:
    """CRC-64-AVRO of a schema, in the order in which messages have its bytes."""
    from fastavro.schema import fingerprint, to_parsing_canonical_form  # noqa: PLC0415 - of the extra

    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))
