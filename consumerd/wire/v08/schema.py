"""Schemas as data: what an API's messages hold, version by version.

Strategy: one tuple of `Field`s per direction describes all versions, because versions mostly add fields: each field
says since and until which version it is there, and since which it may be null. `consumerd.wire.v08.codec` makes
readers and writers of those of one version, in the order of the wire. A name may stand twice with ranges that do not
meet, where a later version moved or retyped a field.

Names are those of Kafka's schemas today, in snake case; `tests/golden/test_guide_grammar.py` has those of the guide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, Literal, TypeVar

from consumerd.wire.v08.errors import UnsupportedVersionError


class FieldType(Enum):
    """Types of fields. The value is the guide's word."""

    BOOLEAN = "BOOLEAN"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    #: A signed length and UTF-8; nullable where the field says so.
    STRING = "STRING"
    BYTES = "BYTES"
    #: A set of messages or record batches, opaque here; always nullable. The guide says BYTES.
    RECORDS = "RECORDS"
    #: 16 bytes, as they are.
    UUID = "UUID"
    #: Repeated `of`: a type, or the fields of a structure.
    ARRAY = "ARRAY"
    #: The fields of `of`, once.
    STRUCT = "STRUCT"


BOOLEAN: Final = FieldType.BOOLEAN
INT8: Final = FieldType.INT8
INT16: Final = FieldType.INT16
INT32: Final = FieldType.INT32
INT64: Final = FieldType.INT64
STRING: Final = FieldType.STRING
BYTES: Final = FieldType.BYTES
RECORDS: Final = FieldType.RECORDS
UUID: Final = FieldType.UUID
ARRAY: Final = FieldType.ARRAY
STRUCT: Final = FieldType.STRUCT

#: The id that says "no topic".
NO_UUID: Final = bytes(16)


#: The default of a field that has none: an encoder refuses a message without it.
REQUIRED: Final = object()

Direction = Literal["request", "response"]
#: The bodies of an API, of `consumerd.wire.v08.message_types`.
RequestT = TypeVar("RequestT", bound="Mapping[str, object]")
ResponseT = TypeVar("ResponseT", bound="Mapping[str, object]")


@dataclass(frozen=True, slots=True)
class Field:
    """One field: `name`, `type`, and `help`, what it means.

    `of`: a type, or fields, for ARRAY; fields for STRUCT.
    `since`, `until`: the versions that have it, both included.
    `nullable`: the first version in which it may be null.
    `default`: what an encoder takes where the message lacks it.
    `ignorable`: a message may hold it for a version without it; it is left out. Without this, a value other than the
    default is refused there, because dropping it would change what the message means.
    `tag`: its number where it is a tagged field (flexible versions only); absent from the wire when at its default.
    `obeyed`: of a throttle time, the first version of which the client has to wait for so long.
    """

    name: str
    type: FieldType
    help: str
    of: FieldType | tuple[Field, ...] = ()
    since: int = 0
    until: int | None = None
    nullable: int | None = None
    default: Any = REQUIRED
    ignorable: bool = False
    tag: int | None = None
    obeyed: int | None = None

    def in_version(self, version: int) -> bool:
        """Whether messages of `version` have the field."""
        return self.since <= version and (self.until is None or version <= self.until)

    def null_in(self, version: int) -> bool:
        """Whether it may be null in `version`."""
        return self.type is RECORDS or (self.nullable is not None and self.nullable <= version)

    def is_default(self, content: Any) -> bool:
        """Whether `content` is what the field has by default. The default of an array, if any, is `()`: no elements."""
        return content in ([], ()) if self.default == () else bool(content == self.default)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Api(Generic[RequestT, ResponseT]):
    """A pair of request and response in all their versions, and of the types of their bodies.

    `versions`: the first and last that are described. `flexible`: the first with compact lengths and tagged fields.
    `alias`: the name in the guide, where it is another.
    """

    key: int
    name: str
    versions: tuple[int, int]
    request: tuple[Field, ...]
    response: tuple[Field, ...]
    flexible: int | None = None
    alias: str | None = None

    def __repr__(self) -> str:
        return f"<Api {self.key} {self.name}>"

    def check(self, version: int) -> None:
        """Raise UnsupportedVersionError for a version that is not described."""
        first, last = self.versions
        if not first <= version <= last:
            raise UnsupportedVersionError(
                f"version {version} of {self.name} (API key {self.key}) is not supported; "
                f"versions {first} to {last} are"
            )

    def is_flexible(self, version: int) -> bool:
        """Whether `version` has compact lengths and tagged fields."""
        return self.flexible is not None and version >= self.flexible
