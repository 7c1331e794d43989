"""The tables of `[spark]` in a configuration file: pydantic models, unknown keys refused.

Strategy: what can be told without a JVM, a broker or a file is checked here, so that `consumerd check` finds it: types,
patterns, intervals, and that the steps fit together. `consumerd.spark.spec` makes of these what the steps work with.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from annotated_types import Ge, Gt
from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from consumerd.config.base import Section
from consumerd.spark.spec_types import FieldType, parse_type

#: Columns of silver that are there in any case, so that no declared field may have their names.
SILVER_COLUMNS: Final = (
    "topic", "broker", "partition", "offset", "index", "broker_partition", "next_offset", "landed_at", "batch",
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


def _interval(text: str) -> str:
    interval_seconds(text)
    return " ".join(text.split()).lower()


def size_bytes(value: int | str) -> int:
    """`128m` in bytes; units are powers of 1024. Raises ValueError."""
    match = _SIZE.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a size such as '128m' (k, m, g, t, or bytes)")
    return int(match[1]) << _SHIFT[match[2].lower()]


Interval = Annotated[str, AfterValidator(_interval)]
Size = Annotated[int | str, AfterValidator(size_bytes)]


class FieldSpec(Section):
    """One declared field: a column of silver."""

    type: str = Field(description="Type of the column, with `not null` behind it where a value has to be there.")
    source: str | None = Field(None, alias="from", description="Its name in the message, where that is another one.")

    @field_validator("type")
    @classmethod
    def _known(cls, text: str) -> str:
        parse_type(text)
        return text

    @property
    def parsed(self) -> FieldType:
        """The type, read."""
        return parse_type(self.type)


class RefineSpec(Section):
    """From bronze to silver: how messages are read, and what is put aside."""

    parse: Literal["json", "avro", "regex"] = Field(
        "json", description="What messages are: JSON objects, Avro records, or lines that match `pattern`."
    )
    fields: dict[str, FieldSpec] = Field(
        min_length=1,
        description=(
            "Columns of silver and their types: Spark's names (also array<...>, map<...>, struct<...>), or "
            'timestamp_s, timestamp_ms, timestamp_us for numbers since 1970. `"bigint not null"` has to be there, else '
            'the message is quarantined. `{ type = "string", from = "topic" }` where the message calls it otherwise.'
        ),
        examples=[{"id": "bigint not null", "at": "timestamp_ms", "page": "string"}],
    )
    pattern: str | None = Field(
        None,
        description="For regex: has to match the whole message; named groups are the fields. Java's syntax.",
        examples=["(?<at>\\S+) (?<level>[A-Z]+) (?<text>.*)"],
    )
    avro_schema: Path | None = Field(
        None,
        description="For avro: file with the schema that the messages were written with.",
        examples=["/etc/consumerd/events.avsc"],
    )
    avro_prefix: Literal["none", "confluent", "single-object"] = Field(
        "none",
        description=(
            "For avro: bytes before the record: none, 5 (a zero and a schema's number), or 10 (single-object encoding)."
        ),
    )
    event_time: str | None = Field(
        None,
        description=(
            "The field that tells when it happened, a timestamp; aggregate needs it. Has to be there then. Where "
            "messages tell no time, `landed_at`: when they landed."
        ),
        examples=["at"],
    )
    dedup: bool = Field(True, description="Keep one row of each identity, of those that landed before too.")

    @field_validator("fields", mode="before")
    @classmethod
    def _short(cls, fields: Any) -> Any:
        """`name = "bigint"` is short for `name = { type = "bigint" }`."""
        if not isinstance(fields, dict):
            return fields
        return {name: {"type": each} if isinstance(each, str) else each for name, each in fields.items()}

    @model_validator(mode="after")
    def _fits(self) -> RefineSpec:
        folded: set[str] = set(SILVER_COLUMNS)
        for name in self.fields:
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
        if (self.parse == "avro") != (self.avro_schema is not None):
            raise ValueError('parse = "avro" requires avro_schema, and avro_schema requires parse = "avro"')
        if self.avro_prefix != "none" and self.parse != "avro":
            raise ValueError('avro_prefix requires parse = "avro"')
        if self.event_time not in (None, LANDED_AT):
            field = self.fields.get(self.event_time)
            if field is None or not field.parsed.is_time:
                raise ValueError(f"event_time = {self.event_time!r} is not a declared field of type timestamp")
        if self.pattern is not None:
            self._groups(self.pattern)
        return self

    def _groups(self, pattern: str) -> None:
        names = re.findall(r"\(\?<([A-Za-z][A-Za-z0-9]*)>", pattern)
        for name, field in self.fields.items():
            if (field.source or name) not in names:
                raise ValueError(f"pattern has no group (?<{field.source or name}>...) for the field {name!r}")
            if field.parsed.is_nested:
                raise ValueError(f"{name!r} = {field.type!r}: a group of a pattern is text, it cannot be nested")


class AggregateSpec(Section):
    """Counts and sums per window of the event's time, from silver."""

    window: Interval = Field("1 hour", description="Length of a window.")
    slide: Interval | None = Field(
        None,
        description="Time between the starts of windows, where they overlap. [default: window]",
        examples=["15 minutes"],
    )
    watermark: Interval = Field(
        "1 hour", description="How late an event may be: a window is written this long after its end was seen."
    )
    group_by: tuple[str, ...] = Field((), description="Columns of silver to group by, besides the window.")
    sums: tuple[str, ...] = Field((), description="Numeric fields to sum; rows are counted in any case.")

    @model_validator(mode="after")
    def _slides(self) -> AggregateSpec:
        if self.slide is not None and interval_seconds(self.slide) > interval_seconds(self.window):
            raise ValueError("slide must not be longer than window, or events between windows would be lost")
        return self


class CompactSpec(Section):
    """Small files made into large ones."""

    target: Size = Field("128m", validate_default=True, description="Size of a file, about, in bytes or as `128m`.")
    keep: Interval = Field(
        "1 hour", description="How long what was merged stays on disk, for readers that began before."
    )

    @property
    def target_bytes(self) -> int:
        """`target` in bytes."""
        return int(self.target)


class GoneSpec(Section):
    """Offsets that never landed and are in the source no more, acknowledged."""

    topic: str = Field(description="The topic.")
    partition: str = Field(description="The partition as reconcile names it: `0-2`, or `2` without a broker.")
    start: Annotated[int, Ge(0)] = Field(description="The first offset that is gone.")
    end: Annotated[int, Gt(0)] = Field(description="The first offset behind it that is not.")
    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)] = Field(
        description="Why; the report says it."
    )

    @model_validator(mode="after")
    def _ordered(self) -> GoneSpec:
        if self.start >= self.end:
            raise ValueError(f"start must be less than end, not {self.start} with end {self.end}")
        return self


class PipelineSection(Section):
    """One pipeline: a folder of this name under `root` holds its tables and checkpoints."""

    source: dict[str, str | int | float | bool | list[Any] | dict[str, Any]] = Field(
        repr=False,
        min_length=1,
        description=(
            "Options of the data source `consumerd`: where (path, zookeeper, brokers, bootstrap, or files for what the "
            "files handler wrote) and what (assign, subscribe, subscribePattern), and the like."
        ),
        examples=[{"zookeeper": "zk1:2181/kafka", "subscribe": "events"}],
    )
    trigger: str = Field(
        "available-now",
        description="available-now: land what is there and end; `10 seconds`: go on until stopped, that often.",
    )
    batches_per_trigger: Annotated[int, Gt(0)] = Field(
        64, description="How many batches of a table the next step takes at a time."
    )
    gone: tuple[GoneSpec, ...] | None = Field(
        None,
        description=(
            "Offsets that were lost before they landed, with the reason. Reconcile does not call a pipeline clean that "
            "lacks any others."
        ),
        examples=[[{"topic": "events", "partition": "0-2", "start": 0, "end": 7100, "reason": "retention in May"}]],
    )
    refine: RefineSpec | None = Field(None, description="From bronze to silver.")
    aggregate: AggregateSpec | None = Field(None, description="Counts and sums.")
    compact: CompactSpec = Field(default_factory=CompactSpec, description="Small files made into large ones.")

    @field_validator("trigger")
    @classmethod
    def _trigger(cls, text: str) -> str:
        return text if text == "available-now" else _interval(text)

    @model_validator(mode="after")
    def _steps_fit(self) -> PipelineSection:
        if self.aggregate is None:
            return self
        if self.refine is None or self.refine.event_time is None:
            raise ValueError("aggregate requires refine with an event_time")
        for name in self.aggregate.group_by:
            if name not in self.refine.fields and name not in SILVER_COLUMNS:
                raise ValueError(f"group_by: {name!r} is neither a declared field nor a column of silver")
        for name in self.aggregate.sums:
            if name not in self.refine.fields or not self.refine.fields[name].parsed.is_number:
                raise ValueError(f"sums: {name!r} is not a declared field of a numeric type")
        return self


class SparkSection(Section):
    """Pipelines on Spark (`consumerd spark`); the daemon does not read them."""

    root: str = Field(
        min_length=1,
        description="Folder or URL of all tables, one folder for each pipeline in it.",
        examples=["/var/lib/consumerd/lake"],
    )
    format: Literal["parquet", "delta"] = Field(
        "parquet", description="Tables are Parquet, or Delta (extra `delta`), which object stores such as S3 need."
    )
    master: str | None = Field(
        None,
        min_length=1,
        description="Spark's master. [default: spark-submit's, or local[*]]",
        examples=["spark://spark-1:7077"],
    )
    config: dict[str, str] = Field(
        repr=False,
        default_factory=dict,
        description="Properties of Spark.",
        examples=[{"spark.driver.memory": "2g"}],
    )
    pipelines: dict[str, PipelineSection] = Field(default_factory=dict, description="Pipelines by name.")

    @field_validator("pipelines")
    @classmethod
    def _folders(cls, pipelines: dict[str, PipelineSection]) -> dict[str, PipelineSection]:
        for name in pipelines:
            if not _FOLDER.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid pipeline name: it is the name of a folder")
        return pipelines
