"""Which schema a message names: Confluent's framing, by id or by GUID.

A message begins with a zero byte and the id of its schema in four bytes, or has the schema's GUID in the header
`__value_schema_id`. Protobuf has the path to its message type behind that.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple

from consumerd.net.schemas.errors import DecodeError

#: The header with a schema's GUID, and the bytes before an id and before a GUID.
GUID_HEADER: Final = "__value_schema_id"
_ID, _GUID = 0, 1
_ID_SIZE, _GUID_SIZE = 5, 17


class Frame(NamedTuple):
    """The schema of a message, by id or GUID, and its value: `data` from `start` on.

    The value of Protobuf begins with the path to its message type.
    """

    schema: int | str
    data: bytes
    start: int


def read_frame(payload: bytes, headers: Sequence[tuple[str, bytes | None]] = ()) -> Frame:
    """Return what a message with this payload says of its schema. Raises DecodeError."""
    for name, value in reversed(headers):
        if name == GUID_HEADER and value is not None and value[:1] == bytes([_GUID]):
            if len(value) < _GUID_SIZE:
                raise DecodeError(f"the header {GUID_HEADER} is truncated")
            guid = str(uuid.UUID(bytes=value[1:_GUID_SIZE]))
            return Frame(guid, value[_GUID_SIZE:] + payload, 0)
    if len(payload) < _ID_SIZE or payload[0] != _ID:
        raise DecodeError("it does not begin with a zero byte and the id of a schema")
    return Frame(int.from_bytes(payload[1:_ID_SIZE]), payload, _ID_SIZE)
