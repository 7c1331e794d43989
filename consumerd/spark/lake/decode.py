"""Messages into the declared columns, in Arrow and without Spark: the same values and reasons as Spark's `parse`.

Strategy: msgspec decodes each message into the scalars that are declared, whatever their JSON type is, and a column of
a batch is made at once where all its values have the type's own. Every other value is read from its text, as Spark
reads it (`casts`); every message that msgspec refuses, or might accept where Spark does not, goes through the exact
reader (`json_text`). A message costs a few microseconds there instead of one.

Messages of a schema registry are read by `registered`, into the same records.

Lines are matched by a pattern in Java's syntax where that means the same in Python (`patterns`). Other patterns, and
records of Avro, are for Spark alone: `MessageFormat.needs_spark` says so, and MessageDecoder raises it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from itertools import count
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from consumerd.base.errors import ConfigError
from consumerd.spark.lake import casts, json_text
from consumerd.spark.lake.casts import zone_of
from consumerd.spark.lake.patterns import python_pattern
from consumerd.spark.lake.registered import RegistrySettings, json_of, open_schemas, plain
from consumerd.spark.spec_check import avro_text

if TYPE_CHECKING:
    from consumerd.spark.spec_model import RefineSpec

#: The column of quarantine with the reason.
REASON: Final = "reason"
NOT_UTF8: Final = "the message is not UTF-8"
NOT_AN_OBJECT: Final = "the message is not a JSON object"
NESTED: Final = "a nested field does not have its declared type"
NO_VALUE: Final = "the message has no value"
WRONG_CRC: Final = "the CRC is wrong"
CORRUPT: Final = "corrupt in the log"


def declared_column(name: str) -> str:
    """The column of a declared field beside those of bronze, which may have one of the field's name."""
    return f"__field_{name}"


#: Messages up to this size cannot reach a limit of Jackson's.
_SHORT: Final = 1000
_LONG_NUMBER = re.compile(rb"[0-9.eE+-]{1001}")
_LONG_NAME = re.compile(rb'"(?:[^"\\]|\\.){50001}', re.DOTALL)


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """The result for a batch of messages. `columns`: the declared fields of the good ones, in their order."""

    columns: pa.RecordBatch
    #: For each message whether it is good.
    good: pa.BooleanArray
    #: For each of the others the reason, in their order.
    reasons: pa.StringArray


class DeclaredField(NamedTuple):
    """One field. `ddl`: its type in Spark; `shown`: as it is declared; `epoch`: ticks per second of a number.

    `divides`: silver is divided by its day, which must be of the years 1 to 9999.
    """

    name: str
    source: str
    ddl: str
    shown: str
    required: bool
    epoch: int | None
    divides: bool = False

    @property
    def is_nested(self) -> bool:
        """Whether it is an array, a map or a struct."""
        return "<" in self.ddl


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """What a `[refine]` table says of messages, without the package that checked it: executors need not have that."""

    fields: tuple[DeclaredField, ...]
    #: For lines: in Java's syntax.
    pattern: str | None = None
    #: Why only Spark can parse such messages; None where `MessageDecoder` does the same.
    needs_spark: str | None = None
    #: For messages that name their schemas: where these are.
    registry: RegistrySettings | None = None

    @classmethod
    def of(cls, spec: RefineSpec) -> MessageFormat:
        """The format that a `[refine]` table declares."""
        fields = []
        for name, field in spec.columns.items():
            kind = field.parsed
            required = kind.required or name == spec.event_time
            source, divides = field.source or name, name == spec.day_of
            fields.append(DeclaredField(name, source, kind.ddl, kind.name, required, kind.epoch, divides))
        return cls(tuple(fields), spec.pattern, _needs_spark(spec), _registry(spec))


def _needs_spark(spec: RefineSpec) -> str | None:
    if spec.parse == "regex":
        assert spec.pattern is not None
        return None if python_pattern(spec.pattern) else f"the pattern {spec.pattern!r} requires Spark"
    # Messages of a registry are read by MessageDecoder where Spark parses, too.
    return 'parse = "avro" requires Spark' if spec.parse == "avro" else None


def _registry(spec: RefineSpec) -> RegistrySettings | None:
    if spec.registry_url is None:
        return None
    reader = None if spec.avro_schema is None else avro_text(spec.avro_schema)
    files = spec.registry_password_file, spec.registry_token_file, spec.registry_ca
    password, token, ca = (None if each is None else str(each) for each in files)
    return RegistrySettings(spec.registry_url, spec.registry_user, password, token, ca, reader)


class MessageDecoder:
    """Decodes batches of bronze. `zone`: the zone of times that name none.

    Raises ConfigError where only Spark can parse such messages.
    """

    def __init__(self, declared: MessageFormat | RefineSpec, zone: tzinfo = UTC) -> None:
        form = declared if isinstance(declared, MessageFormat) else MessageFormat.of(declared)
        if form.needs_spark is not None:
            raise ConfigError(f"{form.needs_spark}: run the step `refine` with `consumerd spark`.")
        binary = casts.base64 if form.pattern is None else str.encode
        self._fields = [_Field(each, zone, binary) for each in form.fields]
        self.schema = pa.schema([pa.field(each.name, each.type) for each in self._fields])
        sources = [each.source for each in form.fields]
        self._read: _JsonReader | _LineReader | _RegisteredReader
        if form.registry is not None:
            self._read = _RegisteredReader(form.registry, _JsonReader(sources, self._fields))
        elif form.pattern is not None:
            self._read = _LineReader(form.pattern, sources)
        else:
            self._read = _JsonReader(sources, self._fields)

    def decode(self, rows: pa.RecordBatch) -> DecodedRows:
        """`rows`: columns of bronze, of them `value`, and where present `crc_ok` and `_corrupt`."""
        refused = dict(_unreadable(rows))
        records = self._read.batch(rows, refused)
        columns, misfits = self._columns(records)
        if misfits:
            positions = [at for at in range(rows.num_rows) if at not in refused] if refused else range(rows.num_rows)
            refused.update((positions[at], reason) for at, reason in misfits.items())
            kept = pa.array([at not in misfits for at in range(len(records))], pa.bool_())
            columns = [column.filter(kept) for column in columns]
        if not refused:
            good = pa.repeat(pa.scalar(True), rows.num_rows)
        else:
            good = pa.array([at not in refused for at in range(rows.num_rows)], pa.bool_())
        reasons = pa.array([refused[at] for at in sorted(refused)], pa.string())
        return DecodedRows(pa.RecordBatch.from_arrays(columns, schema=self.schema), good, reasons)

    def _columns(self, records: Sequence[Any]) -> tuple[list[pa.Array], dict[int, str]]:
        """The columns of these records, and which of them do not fit, with the reason."""
        columns = []
        misfits: dict[int, str] = {}
        for field, getter in zip(self._fields, self._read.getters, strict=True):
            column, wrong = field.column(list(map(getter, records)))
            for at in wrong:
                misfits.setdefault(at, field.wrong)
            if field.required and column.null_count > len(wrong):
                not_there = set(pc.indices_nonzero(column.is_null()).to_pylist()).difference(wrong)
                for at in not_there:
                    misfits.setdefault(at, field.missing)
            columns.append(column)
        return columns, misfits


def with_decoded(batches: Iterable[pa.RecordBatch], *, messages: MessageFormat, zone: str) -> Iterator[pa.RecordBatch]:
    """The rows with their declared fields and `reason`, for `mapInArrow`. Raises as MessageDecoder."""
    found = zone_of(zone)
    assert found is not None
    decoder = MessageDecoder(messages, found)
    for rows in batches:
        decoded = decoder.decode(rows)
        good = decoded.good.to_pylist()
        # Of each row the number of its values among the good ones, and of its reason among the others.
        values, reasons = count(), count()
        at = pa.array([next(values) if each else None for each in good], pa.int64())
        why = pa.array([None if each else next(reasons) for each in good], pa.int64())
        columns = [*rows.columns, *(each.take(at) for each in decoded.columns.columns), decoded.reasons.take(why)]
        names = [*rows.schema.names, *map(declared_column, decoder.schema.names), REASON]
        yield pa.RecordBatch.from_arrays(columns, names)


def _unreadable(rows: pa.RecordBatch) -> Iterable[tuple[int, str]]:
    """The messages that the source could not read, with the reason. The last one of a message is the first to say."""
    for name, reason in (("value", NO_VALUE), ("_corrupt", CORRUPT), ("crc_ok", WRONG_CRC)):
        if name not in rows.schema.names:
            continue
        column = rows.column(name)
        if name == "value":
            found = column.is_null() if column.null_count else None
        elif name == "_corrupt":
            found = column.is_valid() if column.null_count < len(column) else None
        else:
            found = pc.invert(column).fill_null(False) if pc.any(pc.invert(column)).as_py() else None
        if found is not None:
            yield from ((at, reason) for at in pc.indices_nonzero(found).to_pylist())


# -- columns


class _Field:
    """One declared field."""

    def __init__(self, declared: DeclaredField, zone: tzinfo, binary: casts.Cast) -> None:
        name, _, ddl, shown, self.required, self._ticks, divides = declared
        self.name = name
        self.is_nested = declared.is_nested
        self.type = casts.arrow_type(ddl)
        self.wrong = f"{name} is not a {shown}"
        self.missing = f"{name} is missing"
        self._cast: casts.Cast
        self.convert: json_text.Convert | None = None
        if self.is_nested:
            self.convert = json_text.nested(ddl, zone)
        elif self._ticks is not None:
            self._cast = casts.epoch(self._ticks)
        else:
            cast = casts.text_cast(ddl, zone, binary=binary)
            self._cast = casts.within_years(cast) if divides else cast
        self._limit = 1 << (casts.BITS[ddl] - 1) if ddl in casts.BITS else 0
        self._is_whole = self._limit > 0 or self._ticks is not None
        self._own = _OWN.get(ddl, frozenset()) if self._ticks is None else frozenset()

    def column(self, values: list[Any]) -> tuple[pa.Array, Sequence[int]]:
        """The column of these values, and where one does not fit."""
        if self.is_nested:
            return pa.array(values, self.type), ()
        kinds = set(map(type, values))
        if str in kinds and self._is_whole:
            values = [
                # Python reads such a text as Spark does, and no type is exceeded by much.
                int(each) if type(each) is str and len(each) < 20 and each.isdigit() and each.isascii() else each
                for each in values
            ]
            kinds = set(map(type, values))
        if self._ticks is not None and kinds <= _INTEGERS:
            fast = _epoch_column(values, self._ticks)
            if fast is not None:
                return fast.cast(self.type), ()
        own = self._own
        wrong: list[int] = []
        if own:
            read = values
            if not kinds <= own:
                read = values.copy()
                for at in [at for at, value in enumerate(values) if type(value) not in own]:
                    read[at] = self._cast(_text_of(values[at]))
                    if read[at] is None:
                        wrong.append(at)
            try:
                return pa.array(read, self.type), wrong
            except (pa.ArrowInvalid, OverflowError):  # an integer too large: which one?
                pass
        read = [None if value is None else self._value(value) for value in values]
        wrong = [at for at, value in enumerate(read) if value is None and values[at] is not None]
        return pa.array(read, self.type), wrong

    def _value(self, value: Any) -> Any:
        if type(value) is int and self._limit:
            return value if -self._limit <= value < self._limit else None
        return self._cast(_text_of(value))


_NULL: Final = type(None)
#: What Arrow stores as Spark would, if a column has nothing else.
_INTEGERS: Final = frozenset((int, _NULL))
_OWN: Final[Mapping[str, frozenset[type]]] = {
    **dict.fromkeys(casts.BITS, _INTEGERS),
    "double": frozenset((float, _NULL)),
    "boolean": frozenset((bool, _NULL)),
    "string": frozenset((str, _NULL)),
}


def _epoch_column(values: list[int | None], ticks: int) -> pa.Array | None:
    """Microseconds since 1970; None where a number is out of range."""
    try:
        column = pa.array(values, pa.int64())
    except (pa.ArrowInvalid, OverflowError):
        return None
    factor = 1_000_000 // ticks
    bounds = pc.min_max(column).as_py()
    if bounds["min"] is None:
        return column
    if bounds["min"] * factor < casts.FIRST_MICROS or bounds["max"] * factor > casts.LAST_MICROS:
        return None
    return pc.multiply(column, factor) if factor > 1 else column


def _text_of(value: Any) -> str:
    """A JSON scalar as the text that Spark makes of it."""
    if type(value) is str:
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return json_text.float_text(value) if isinstance(value, float) else str(value)


# -- JSON

_Scalar = int | float | str | bool | None


class _JsonReader:
    """Messages into records with an attribute for each name: a scalar, or a nested value for Arrow."""

    def __init__(self, sources: Sequence[str], fields: Sequence[_Field]) -> None:
        conversions = {source: field.convert for source, field in zip(sources, fields, strict=True)}
        names = {source: f"f{number}" for number, source in enumerate(conversions)}
        #: What takes each field from a record.
        self.getters: list[Callable[[Any], Any]] = [attrgetter(names[source]) for source in sources]
        self.wanted = frozenset(conversions)
        self._wanted = {source: (names[source], convert) for source, convert in conversions.items()}
        self._nested = [(names[source], convert) for source, convert in conversions.items() if convert is not None]
        self._once = [f'"{source}"'.encode() for source, convert in conversions.items() if convert is not None]
        self._plain = all(_PLAIN_NAME.fullmatch(source) for source in conversions)
        self._record: Any = msgspec.defstruct(
            "Record",
            [
                (names[source], _Scalar if convert is None else msgspec.Raw | None, None)
                for source, convert in conversions.items()
            ],
            rename={attribute: source for source, attribute in names.items()},
            gc=False,
        )
        self._decode = msgspec.json.Decoder(self._record).decode

    def batch(self, rows: pa.RecordBatch, refused: dict[int, str]) -> list[Any]:
        """The records of the messages that `refused` does not have; adds those that cannot be read to it."""
        return self.records(rows.column("value"), refused)

    def records(self, values: pa.Array, refused: dict[int, str]) -> list[Any]:
        """As `batch`, of these messages; those that are null are left out."""
        messages = values.to_pylist()
        for at in _not_utf8(values, messages):
            refused.setdefault(at, NOT_UTF8)
        is_short = (pc.max(pc.binary_length(values)).as_py() or 0) <= _SHORT
        decode = self._decode if is_short and not self._nested else self._careful
        records: list[Any] = []
        add = records.append
        for at in refused:
            messages[at] = None
        for at, message in enumerate(messages):
            try:
                add(decode(message))
            except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
                if message is None:
                    continue
                record = self._exact(message)
                if isinstance(record, str):
                    refused[at] = record
                else:
                    add(record)
        return records

    def _careful(self, message: bytes) -> Any:
        """As msgspec decodes it. Raises ValueError for a message that it might read otherwise than Spark does."""
        if len(message) > _SHORT and _reaches_limits(message):
            raise ValueError("a limit of Jackson's")
        if self._nested and (
            not self._plain or b"\\u00" in message or any(message.count(name) > 1 for name in self._once)
        ):
            raise ValueError("a name may come twice")
        record = self._decode(message)
        for attribute, convert in self._nested:
            raw = getattr(record, attribute)
            if raw is not None:
                setattr(record, attribute, convert(json_text.read_strict(str(raw, "utf-8"))))
        return record

    def _exact(self, message: bytes) -> Any:
        """The record as Spark reads it, or the reason why it does not."""
        try:
            objects, control_texts = json_text.read_records(message.decode())
        except json_text.MalformedJsonError:
            return NOT_AN_OBJECT
        values: dict[str, Any] = {}
        is_refused = False
        for members in objects:
            values = {}
            for name, token in members or ():
                if name not in self._wanted:
                    continue
                attribute, convert = self._wanted[name]
                try:
                    values[attribute] = json_text.text_of(token) if convert is None else convert(token)
                except json_text.NestedTypeError:
                    is_refused = True
        if objects[-1] is None or (control_texts and (is_refused or not all(each.is_read for each in control_texts))):
            return NOT_AN_OBJECT
        return NESTED if is_refused else self._record(**values)

    def record(self, members: Mapping[str, Any]) -> Any:
        """The record of a value that is not JSON, or the reason why it is none."""
        values: dict[str, Any] = {}
        for name, (attribute, convert) in self._wanted.items():
            value = members.get(name)
            if convert is None and not isinstance(value, dict | list):
                values[attribute] = plain(value)
                continue
            token = json_text.read_strict(json_of(value))
            try:
                values[attribute] = json_text.text_of(token) if convert is None else convert(token)
            except json_text.NestedTypeError:
                return NESTED
        return self._record(**values)


class _RegisteredReader:
    """Messages that name their schema in a registry into the records of `inner`."""

    def __init__(self, settings: RegistrySettings, inner: _JsonReader) -> None:
        self._schemas = open_schemas(settings, inner.wanted)
        self._inner = inner
        self.getters = inner.getters

    def batch(self, rows: pa.RecordBatch, refused: dict[int, str]) -> list[Any]:
        """See _JsonReader. Raises RegistryUnavailableError."""
        headers = rows.column("headers").to_pylist() if "headers" in rows.schema.names else None
        records: dict[int, Any] = {}
        documents: list[bytes | None] = [None] * rows.num_rows
        for at, message in enumerate(rows.column("value").to_pylist()):
            if at in refused:
                continue
            pairs = [(each["key"], each["value"]) for each in headers[at] or ()] if headers else []
            found = self._schemas.read(message, pairs)
            if isinstance(found, bytes):
                documents[at] = found
                continue
            record = found if isinstance(found, str) else self._inner.record(found)
            if isinstance(record, str):
                refused[at] = record
            else:
                records[at] = record
        if any(each is not None for each in documents):
            objects = iter(self._inner.records(pa.array(documents, pa.binary()), refused))
            records.update(
                (at, next(objects)) for at, each in enumerate(documents) if each is not None and at not in refused
            )
        return [records[at] for at in sorted(records)]


NO_MATCH: Final = "the message does not match the pattern"


class _LineReader:
    """Messages into the texts of the groups of a pattern."""

    def __init__(self, pattern: str, sources: Sequence[str]) -> None:
        compiled = python_pattern(pattern)
        assert compiled is not None
        self._match = compiled.match
        names = list(compiled.groupindex)
        self._names = names
        self.getters: list[Callable[[Any], Any]] = [itemgetter(names.index(source)) for source in sources]

    def batch(self, rows: pa.RecordBatch, refused: dict[int, str]) -> list[Any]:
        """See _JsonReader. An empty text is null."""
        values = rows.column("value")
        messages = values.to_pylist()
        for at in _not_utf8(values, messages):
            refused.setdefault(at, NOT_UTF8)
        records: list[Any] = []
        for at, message in enumerate(messages):
            if at in refused:
                continue
            match = self._match(message.decode())
            if match is None:
                refused[at] = NO_MATCH
            else:
                records.append([match[name] or None for name in self._names])
        return records


_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]*")


#: Messages that are verified at once.
_BLOCK: Final = 256


def _not_utf8(values: pa.Array, messages: Sequence[bytes | None]) -> Iterator[int]:
    """The messages that are not UTF-8."""
    if _all_utf8(values):
        return
    for start in range(0, len(values), _BLOCK):
        if not _all_utf8(values.slice(start, _BLOCK)):
            block = enumerate(messages[start : start + _BLOCK], start)
            yield from (at for at, message in block if message is not None and not _is_utf8(message))


def _all_utf8(values: pa.Array) -> bool:
    try:
        values.cast(pa.large_string() if pa.types.is_large_binary(values.type) else pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _is_utf8(message: bytes) -> bool:
    try:
        message.decode()
    except UnicodeDecodeError:
        return False
    return True


def _reaches_limits(message: bytes) -> bool:
    """Whether a message may be nested deeper, or have a longer number or name, than Jackson reads."""
    if message.count(b"{") + message.count(b"[") >= json_text.MAX_DEPTH or _LONG_NUMBER.search(message):
        return True
    return len(message) > json_text.MAX_NAME and _LONG_NAME.search(message) is not None
