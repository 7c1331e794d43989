"""The tables of `[spark]` in a configuration file: each key is declared once, unknown keys are refused.

Strategy: what can be verified without a JVM, a broker or a file is verified here, so that `consumerd check` finds it:
types, patterns, intervals, and that the steps fit together. `consumerd.spark.spec` resolves these for the steps.

Types of fields are a small grammar over Spark's own names: it accepts the types that Spark's parser
accepts, with additional types for numbers that mean a time. `bigint not null` declares a required field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

from consumerd.base.errors import did_you_mean
from consumerd.base.settings.kind import Ge, Gt
from consumerd.base.settings.setting import Field, Section
from consumerd.spark.lake import NO_PARQUET

#: Columns of silver that are there in any case, so that no declared field may have their names.
SILVER_COLUMNS: Final = (
    "topic", "broker", "partition", "topic_id", "leader_epoch", "offset", "index", "broker_partition", "next_offset",
    "landed_at", "batch",
)  # fmt: skip
#: The one of them that can stand for the time of an event.
LANDED_AT: Final = "landed_at"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_INTERVAL = re.compile(r"\s*([1-9][0-9]{0,8})\s*(second|minute|hour|day|week)s?\s*", re.IGNORECASE)
_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_SIZE = re.compile(r"\s*([1-9][0-9]{0,17})\s*([kmgt]?)i?b?\s*", re.IGNORECASE)
_SHIFT: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def interval_seconds(text: str) -> int:
    """`10 minutes` in seconds. Raises ValueError for anything that is not a positive number of a unit."""
    match = _INTERVAL.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an interval such as '10 minutes' (seconds, minutes, hours, days, weeks)")
    return int(match[1]) * _SECONDS[match[2].lower()]


def _interval(text: Any) -> str:
    interval_seconds(str(text))
    return " ".join(str(text).split()).lower()


def size_bytes(value: int | str) -> int:
    """`128m` in bytes; units are powers of 1024. Raises ValueError."""
    match = _SIZE.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a size such as '128m' (k, m, g, t, or bytes)")
    return int(match[1]) << _SHIFT[match[2].lower()]


def _rules(check: Callable[[], None]) -> Iterator[str]:
    """The first rule that is broken, which `check` raises as a ValueError."""
    try:
        check()
    except ValueError as error:
        yield str(error)


def _type(text: Any) -> Any:
    parse_type(str(text))
    return text


def _trigger(text: Any) -> str:
    return "available-now" if text == "available-now" else _interval(text)


def _stripped(text: Any) -> Any:
    return text.strip() if isinstance(text, str) else text


def _format(name: Any) -> Any:
    if name == "parquet":
        raise ValueError(NO_PARQUET)
    return name


def _folders(pipelines: Any) -> Any:
    for name in pipelines if isinstance(pipelines, dict) else ():
        if not _FOLDER.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid pipeline name: it is the name of a folder")
    return pipelines


class FieldSpec(Section):
    """One declared field: a column of silver."""

    short = "type"

    type: str = Field(
        description="Type of the column, with `not null` behind it where a value has to be there.", read=_type
    )
    source: str | None = Field(None, alias="from", description="Its name in the message, where that is another one.")

    @property
    def parsed(self) -> ColumnType:
        """The parsed type."""
        return parse_type(self.type)


class RefineSpec(Section):
    """From bronze to silver: how messages are parsed, and what is quarantined."""

    parse: Literal["json", "avro", "regex", "schema_registry"] = Field(
        "json",
        description=(
            "Format of the messages: JSON objects, Avro records, lines that match `pattern`, or what the schema in a "
            "registry says that each message names by its id (Avro, Protobuf or JSON)."
        ),
    )
    columns: dict[str, FieldSpec] = Field(
        alias="fields",
        min_length=1,
        description=(
            "Columns of silver and their types: Spark's names (also array<...>, map<...>, struct<...>), or "
            "timestamp_s, timestamp_ms, timestamp_us for numbers since 1970. A message without a `not null` field is "
            'quarantined. A field of another name is written `{ type = "string", from = "topic" }`.'
        ),
        examples=[{"id": "bigint not null", "at": "timestamp_ms", "page": "string"}],
    )
    pattern: str | None = Field(
        None,
        description=(
            "For regex: expression in Java's syntax that must match the whole message; its named groups are the fields."
        ),
        examples=["(?<at>\\S+) (?<level>[A-Z]+) (?<text>.*)"],
    )
    avro_schema: Path | None = Field(
        None,
        description=(
            "For avro: file with the schema that the messages were written with. For schema_registry: the reader's "
            "schema, to which messages in Avro are resolved."
        ),
        examples=["/etc/consumerd/events.avsc"],
    )
    avro_prefix: Literal["none", "confluent", "single-object"] = Field(
        "none",
        description=(
            "For avro: bytes before the record: none, 5 (a zero and a schema id), or 10 (single-object encoding)."
        ),
    )
    registry_url: str | None = Field(
        None, description="For schema_registry: URL of its API.", examples=["https://registry.example.org"]
    )
    registry_user: str | None = Field(None, description="For schema_registry: user of the login.", examples=["lake"])
    registry_password_file: Path | None = Field(
        None,
        description="For schema_registry: file with the password, on each machine where tasks run.",
        examples=["/run/credentials/registry"],
    )
    registry_token_file: Path | None = Field(
        None,
        description="For schema_registry: file with a bearer token, instead of user and password.",
        examples=["/run/credentials/registry-token"],
    )
    registry_ca: Path | None = Field(
        None,
        description="For schema_registry: PEM file with the authorities to trust. [default: the system's]",
        examples=["/etc/consumerd/ca.pem"],
    )
    event_time: str | None = Field(
        None,
        description=(
            "Timestamp field with the time of the event, which every message must have; aggregate requires it. For "
            "messages without a time use `landed_at`, when they landed."
        ),
        examples=["at"],
    )
    dedup: bool = Field(True, description="Keep one row of each identity, those that landed earlier included.")
    partition_by: tuple[str, ...] = Field(
        (),
        description=(
            "Divide silver by day (UTC): `date(at)` for a timestamp field or `landed_at`; quarantine is divided by "
            "`date(landed_at)` then. For tables that are read by day."
        ),
        examples=[["date(at)"]],
    )

    @property
    def day_of(self) -> str | None:
        """The column by whose day silver is divided."""
        return None if not self.partition_by else self.partition_by[0].removeprefix("date(").removesuffix(")")

    def rules(self) -> Iterator[str]:
        """The first rule about several keys that is broken."""
        return _rules(self._fits)

    def _fits(self) -> None:
        folded: set[str] = set(SILVER_COLUMNS)
        for name in self.columns:
            if not _NAME.fullmatch(name) or name.startswith("_"):
                raise ValueError(f"{name!r} is not a valid column name: letters, digits and inner _ only")
            if name.lower() in folded:
                raise ValueError(
                    f"the column {name!r} already exists; give the field another name: "
                    f'other = {{ type = "...", from = "{name}" }}'
                )
            folded.add(name.lower())
        if (self.parse == "regex") != (self.pattern is not None):
            raise ValueError('parse = "regex" requires pattern, and pattern requires parse = "regex"')
        if self.parse == "schema_registry" or self.registry_url is not None:
            self._registered()
        elif (self.parse == "avro") != (self.avro_schema is not None):
            raise ValueError('parse = "avro" requires avro_schema, and avro_schema requires parse = "avro"')
        if self.avro_prefix != "none" and self.parse != "avro":
            raise ValueError('avro_prefix requires parse = "avro"')
        self._members()
        if self.event_time not in (None, LANDED_AT):
            field = self.columns.get(self.event_time)
            if field is None or not field.parsed.is_time:
                raise ValueError(f"event_time = {self.event_time!r} is not a declared field of type timestamp")
        if self.partition_by:
            self._divides()
        if self.pattern is not None:
            self._groups(self.pattern)

    def _registered(self) -> None:
        if self.parse != "schema_registry" or self.registry_url is None:
            raise ValueError(
                'parse = "schema_registry" requires registry_url, and registry_url requires parse = "schema_registry"'
            )
        has_token = self.registry_token_file is not None
        if (self.registry_user is None) != (self.registry_password_file is None) or (has_token and self.registry_user):
            raise ValueError("give registry_user and registry_password_file, or registry_token_file, or none of them")

    def _members(self) -> None:
        """The rules for fields that are members of JSON, or are read as if they were."""
        if self.parse not in ("json", "schema_registry"):
            return
        kinds: dict[str, str] = {}
        for name, field in self.columns.items():
            kind, source = field.parsed, field.source or name
            ddl = kind.ddl if kind.is_nested else "scalar"
            if kinds.setdefault(source, ddl) != ddl:
                raise ValueError(f"{source!r} is read as two types; declare one of them")
            if re.search(r"map<(?!string,)", ddl):
                raise ValueError(f"{name!r} = {field.type!r}: keys of a map must be strings")

    def _divides(self) -> None:
        name = self.day_of
        field = self.columns.get(name or "")
        is_time = name == LANDED_AT or (field is not None and field.parsed.is_time)
        if len(self.partition_by) > 1 or self.partition_by[0] != f"date({name})" or not is_time:
            raise ValueError(
                f"partition_by = {list(self.partition_by)} must be one date(...) of {LANDED_AT} or of a field of type "
                "timestamp"
            )
        if any(each.lower() == f"{name}_date".lower() for each in self.columns):
            raise ValueError(f"the column '{name}_date' is that of the partitions; give the field another name")

    def _groups(self, pattern: str) -> None:
        names = re.findall(r"\(\?<([A-Za-z][A-Za-z0-9]*)>", pattern)
        for name, field in self.columns.items():
            if (field.source or name) not in names:
                raise ValueError(f"pattern has no group (?<{field.source or name}>...) for the field {name!r}")
            if field.parsed.is_nested:
                raise ValueError(f"{name!r} = {field.type!r}: a group of a pattern is text, it cannot be nested")


class AggregateSpec(Section):
    """Counts and sums per window of the event's time, from silver."""

    window: str = Field("1 hour", description="Length of a window.", read=_interval)
    slide: str | None = Field(
        None,
        read=_interval,
        description="Time between the starts of windows, where they overlap. [default: window]",
        examples=["15 minutes"],
    )
    watermark: str = Field(
        "1 hour",
        read=_interval,
        description=(
            "Maximum delay of an event: a window is written once an event this much later than its end was seen."
        ),
    )
    group_by: tuple[str, ...] = Field((), description="Columns of silver to group by, besides the window.")
    sums: tuple[str, ...] = Field((), description="Numeric fields to sum; rows are counted in any case.")

    def rules(self) -> Iterator[str]:
        """The first rule about several keys that is broken."""
        return _rules(self._slides)

    def _slides(self) -> None:
        if self.slide is not None and interval_seconds(self.slide) > interval_seconds(self.window):
            raise ValueError("slide must not be longer than window, or events between windows would be lost")


class CompactSpec(Section):
    """Merging of small files into large ones."""

    target: int | str = Field("128m", "Approximate size of a file, in bytes or as `128m`.", read=size_bytes)
    keep: str = Field("1 hour", "How long merged files stay on disk, for readers that started before.", read=_interval)

    @property
    def target_bytes(self) -> int:
        """`target` in bytes."""
        return size_bytes(self.target)


class GoneSpec(Section):
    """Offsets that never landed and are in the source no more, acknowledged."""

    topic: str = Field(description="The topic.")
    partition: str = Field(description="The partition as reconcile names it: `0-2`, or `2` without a broker.")
    start: Annotated[int, Ge(0)] = Field(description="The first offset that is gone.")
    end: Annotated[int, Gt(0)] = Field(description="The first offset behind it that is not.")
    reason: str = Field(description="Why; the report says it.", read=_stripped, min_length=1)

    def rules(self) -> Iterator[str]:
        """The first rule about several keys that is broken."""
        return _rules(self._ordered)

    def _ordered(self) -> None:
        if self.start >= self.end:
            raise ValueError(f"start must be less than end, not {self.start} with end {self.end}")


class PipelineSection(Section):
    """One pipeline: a folder of this name under `root` holds its tables and checkpoints."""

    source: dict[str, str | int | float | bool | list[Any] | dict[str, Any]] = Field(
        repr=False,
        min_length=1,
        description=(
            "Options of the data source `consumerd`: where to read (path, zookeeper, brokers, bootstrap, or "
            "files for what the files handler wrote), what to read (assign, subscribe, subscribePattern), and "
            "any others."
        ),
        examples=[{"zookeeper": "zk1:2181/kafka", "subscribe": "events"}],
    )
    trigger: str = Field(
        "available-now",
        read=_trigger,
        description=(
            "When to land: `available-now` lands what is there and ends; an interval such as `10 seconds` repeats "
            "until stopped."
        ),
    )
    batches_per_trigger: Annotated[int, Gt(0)] = Field(
        64, description="Number of batches of a table that the next step takes at a time."
    )
    gone: tuple[GoneSpec, ...] | None = Field(
        None,
        description=(
            "Offsets that were lost before they landed, each with the reason. Reconcile reports all others "
            "that are missing as gaps."
        ),
        examples=[[{"topic": "events", "partition": "0-2", "start": 0, "end": 7100, "reason": "retention in May"}]],
    )
    refine: RefineSpec | None = Field(None, description="From bronze to silver.")
    aggregate: AggregateSpec | None = Field(None, description="Counts and sums.")
    compact: CompactSpec = Field(default_factory=CompactSpec, description="Small files made into large ones.")

    def rules(self) -> Iterator[str]:
        """The first rule about several keys that is broken."""
        return _rules(self._steps_fit)

    def _steps_fit(self) -> None:
        if self.aggregate is None:
            return
        if self.refine is None or self.refine.event_time is None:
            raise ValueError("aggregate requires refine with an event_time")
        for name in self.aggregate.group_by:
            if name not in self.refine.columns and name not in SILVER_COLUMNS:
                raise ValueError(f"group_by: {name!r} is neither a declared field nor a column of silver")
        for name in self.aggregate.sums:
            if name not in self.refine.columns or not self.refine.columns[name].parsed.is_number:
                raise ValueError(f"sums: {name!r} is not a declared field of a numeric type")


class SparkSection(Section):
    """Pipelines on Spark (`consumerd spark`); the daemon does not read them."""

    root: str = Field(
        min_length=1,
        description="Folder or URL of all tables, with one folder for each pipeline.",
        examples=["/var/lib/consumerd/lake"],
    )
    format: Literal["delta", "iceberg"] = Field(
        "delta", "Format of the tables: Delta, or Iceberg (extra `iceberg`).", read=_format
    )
    master: str | None = Field(
        None,
        min_length=1,
        description="Spark master. [default: spark-submit's, or local[*]]",
        examples=["spark://spark-1:7077"],
    )
    config: dict[str, str] = Field(
        repr=False,
        default_factory=dict,
        description="Spark properties.",
        examples=[{"spark.driver.memory": "2g"}],
    )
    pipelines: dict[str, PipelineSection] = Field(default_factory=dict, description="Pipelines by name.", read=_folders)


_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint", "float", "double")
_SCALARS: Final = (*_NUMBERS, "boolean", "string", "binary", "date", "timestamp")
#: Other spellings, also Spark's.
_ALIASES: Final[Mapping[str, str]] = {
    "byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float", "bool": "boolean",
}  # fmt: skip
#: Numbers since 1970-01-01T00:00:00Z, by how many of them make a second.
EPOCHS: Final[Mapping[str, int]] = {"timestamp_s": 1, "timestamp_ms": 1000, "timestamp_us": 1_000_000}
_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[<>(),:])")
#: Deeper nesting than this is an attack on the reader of the file, or a mistake.
_MAX_DEPTH: Final = 32


class ColumnType(NamedTuple):
    """A declared type. `ddl`: the column's type in Spark; `epoch`: ticks per second, where the input is a number."""

    ddl: str
    required: bool = False
    epoch: int | None = None

    @property
    def name(self) -> str:
        """As it is declared, without `not null`."""
        return self.ddl if self.epoch is None else next(name for name, ticks in EPOCHS.items() if ticks == self.epoch)

    @property
    def is_nested(self) -> bool:
        """Whether it is an array, a map or a struct."""
        return "<" in self.ddl

    @property
    def is_number(self) -> bool:
        """Whether values can be summed."""
        return self.ddl in _NUMBERS or self.ddl.startswith("decimal(")

    @property
    def is_time(self) -> bool:
        """Whether values can be the time of an event."""
        return self.ddl == "timestamp"


def parse_type(text: str) -> ColumnType:
    """Read `bigint`, `decimal(10,2) not null`, `array<struct<a:int,b:string>>`, `timestamp_ms` and the like.

    Raises ValueError with a sentence that names the problem.
    """
    words = text.strip().lower()
    required = words.endswith(" not null")
    words = words.removesuffix(" not null").strip()
    if words in EPOCHS:
        return ColumnType("timestamp", required, EPOCHS[words])
    reader = _Reader(text.strip()[: len(words)])
    ddl = reader.type(0)
    reader.end()
    return ColumnType(ddl, required)


class _Reader:
    """Recursive descent over the tokens of one type."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def _peek(self) -> str:
        match = _TOKEN.match(self._text, self._at)
        return match[1] if match else ""

    def _next(self) -> str:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            rest = self._text[self._at :].strip()
            raise ValueError(
                f"{self._text!r} is not a type: " + (f"{rest[:20]!r} is unexpected" if rest else "it ends too early")
            )
        self._at = match.end()
        return match[1]

    def _expect(self, token: str) -> None:
        found = self._next()
        if found != token:
            raise ValueError(f"{self._text!r} is not a type: {token!r} is missing before {found!r}")

    def end(self) -> None:
        """Raise ValueError if any text is left."""
        rest = self._text[self._at :].strip()
        if rest:
            raise ValueError(f"{self._text!r} is not a type: {rest[:20]!r} is unexpected")

    def type(self, depth: int) -> str:
        """The next type, in its canonical spelling."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"a type is nested more than {_MAX_DEPTH} deep")
        name = self._next().lower()
        name = _ALIASES.get(name, name)
        if name in _SCALARS:
            return name
        if name == "decimal":
            return self._decimal()
        if name == "array":
            self._expect("<")
            element = self.type(depth + 1)
            self._expect(">")
            return f"array<{element}>"
        if name == "map":
            self._expect("<")
            key = self.type(depth + 1)
            self._expect(",")
            value = self.type(depth + 1)
            self._expect(">")
            return f"map<{key},{value}>"
        if name == "struct":
            return self._struct(depth)
        known = (*_SCALARS, *_ALIASES, *EPOCHS, "decimal", "array", "map", "struct")
        instead = f"; known are {', '.join(_SCALARS)}, decimal(p,s)"
        raise ValueError(f"{name!r} is not a type{did_you_mean(name, known, instead)}")

    def _decimal(self) -> str:
        if self._peek() != "(":
            return "decimal(10,0)"
        self._expect("(")
        precision = self._number()
        scale = 0
        if self._peek() == ",":
            self._expect(",")
            scale = self._number()
        self._expect(")")
        if not (1 <= precision <= 38 and scale <= precision):
            raise ValueError(f"decimal({precision},{scale}) is not a type: precision is 1 to 38, scale at most that")
        return f"decimal({precision},{scale})"

    def _number(self) -> int:
        token = self._next()
        if not token.isdigit() or len(token) > 3:
            raise ValueError(f"{self._text!r} is not a type: {token!r} is not a small number")
        return int(token)

    def _struct(self, depth: int) -> str:
        self._expect("<")
        fields = []
        while True:
            name = self._next()
            if not name.isidentifier():
                raise ValueError(f"{self._text!r} is not a type: {name!r} is not a valid field name")
            self._expect(":")
            fields.append(f"{name}:{self.type(depth + 1)}")
            if self._peek() != ",":
                break
            self._expect(",")
        self._expect(">")
        return f"struct<{','.join(fields)}>"
