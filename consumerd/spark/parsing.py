"""Messages into declared columns, and the reason why one does not fit.

Strategy: the reader of a format returns every declared field as it is in the message, scalars of text formats as text;
then one rule for all formats casts each to its type, so that a value that does not fit is distinguished from a missing
one, and the reason can name the field. Everything is Spark columns; no row passes through Python, but for messages of
a schema registry.

Reasons have few distinct texts (a field and a kind of error), so that they can be counted; the value itself is in the
quarantined row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import DataType, StringType, StructField, StructType

from consumerd.base.errors import ConfigError
from consumerd.spark.lake import casts, decode
from consumerd.spark.lake.casts import zone_of
from consumerd.spark.lake.decode import MessageFormat, declared_column
from consumerd.spark.packages import AVRO_PACKAGE
from consumerd.spark.source.columns import CORRUPT
from consumerd.spark.spec_check import avro_text

if TYPE_CHECKING:
    from consumerd.spark.spec import RefineSpec
    from consumerd.spark.spec_model import ColumnType

#: Column with the reason; null where the message fits.
REASON: Final = decode.REASON
_PARSED: Final = "__parsed"
#: More bytes than a value can have.
_REST: Final = (1 << 31) - 1
#: An Avro int, and bytes that no record is followed by.
_HEAD: Final = b"\x02"
_TAIL: Final = b"\xd7\x1eend of\x8a\xf0"
_BROKEN: Final = "__broken"


def parse(frame: DataFrame, spec: RefineSpec) -> DataFrame:
    """`frame` (columns of bronze) with the declared fields, as `declared_fields` has them, and `reason` added.

    Raises ConfigError.
    """
    if spec.parse == "schema_registry":
        return _registered(frame, spec)
    reading = _READERS[spec.parse](frame, spec)
    values: dict[str, Column] = {}
    reasons = [*_readable(frame), *reading.reasons]
    for name, field in spec.columns.items():
        raw = reading.raw[name]
        kind = field.parsed
        values[name] = raw if kind.is_nested else _cast(raw, kind, spec.parse)
        if name == spec.day_of:
            within = F.unix_micros(values[name]).between(casts.FIRST_MICROS, casts.LAST_MICROS)
            values[name] = F.when(within, values[name])
        if not kind.is_nested:
            said = f"{name} is not a {kind.name}"
            reasons.append(F.when(raw.isNotNull() & values[name].isNull(), F.lit(said)))
        if kind.required or name == spec.event_time:
            reasons.append(F.when(raw.isNull(), F.lit(f"{name} is missing")))
    columns = {declared_column(name): value for name, value in values.items()}
    return reading.frame.withColumns({**columns, REASON: F.coalesce(*reasons)}).drop(_PARSED)


def declared_fields(spec: RefineSpec) -> list[Column]:
    """The declared fields of what `parse` returns, by their names."""
    return [F.col(declared_column(name)).alias(name) for name in spec.columns]


def _registered(frame: DataFrame, spec: RefineSpec) -> DataFrame:
    """As `parse`, by the decoder of tasks: Spark has no functions for schemas of a registry."""
    messages = MessageFormat.of(spec)
    zone = frame.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC"
    if zone_of(zone) is None:
        raise ConfigError(f'spark.sql.session.timeZone = {zone!r} is not a zone for parse = "schema_registry".')
    schema = frame.schema
    for name, field in spec.columns.items():
        schema = StructType([*schema, StructField(declared_column(name), DataType.fromDDL(field.parsed.ddl))])
    schema = StructType([*schema, StructField(REASON, StringType())])
    return frame.mapInArrow(partial(decode.with_decoded, messages=messages, zone=zone), schema)


def _readable(frame: DataFrame) -> list[Column]:
    """Whether the source could read the message."""
    reasons = [F.when(~F.col("crc_ok"), F.lit(decode.WRONG_CRC))] if "crc_ok" in frame.columns else []
    if CORRUPT.name in frame.columns:
        # Sentences name offsets: they are in the quarantined row, and their kind is the reason.
        reasons.append(F.when(F.col(CORRUPT.name).isNotNull(), F.lit(decode.CORRUPT)))
    return [*reasons, F.when(F.col("value").isNull(), F.lit(decode.NO_VALUE))]


def _cast(raw: Column, kind: ColumnType, parse: str) -> Column:
    """The value cast to its type, null if it does not fit."""
    if kind.epoch is not None:
        # A plain product too large for the type would end the query.
        micros = F.try_multiply(raw.try_cast("decimal(38,6)"), F.lit(1_000_000 // kind.epoch))
        return F.when(
            micros.between(casts.FIRST_MICROS, casts.LAST_MICROS), F.timestamp_micros(micros.try_cast("bigint"))
        )
    if kind.ddl == "binary" and parse == "json":
        return F.try_to_binary(raw, F.lit("base64"))
    return raw.try_cast(kind.ddl)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


# -- readers


class _Reading(NamedTuple):
    """A frame, the fields as they are in the message, and the possible errors of a message."""

    frame: DataFrame
    raw: Mapping[str, Column]
    reasons: list[Column]


def _json(frame: DataFrame, spec: RefineSpec) -> _Reading:
    text = F.col("value").cast("string")

    numbers = {name: f"f{number}" for number, name in enumerate(_sources(spec))}

    def read(*, nested: bool) -> Column:
        types = {
            field.source or name: field.parsed.ddl if field.parsed.is_nested and nested else "string"
            for name, field in spec.columns.items()
        }
        columns = ", ".join(f"{_quoted(name)}: {ddl}" for name, ddl in types.items())
        schema = f"r struct<{columns}>, {_BROKEN} string"
        found = F.from_json(wrapped, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN})
        # By number, since Spark does not tell names apart that differ in case alone.
        columns = ", ".join(f"{numbers[name]}: {ddl}" for name, ddl in types.items())
        return found.cast(f"struct<r: struct<{columns}>, {_BROKEN}: string>")

    # Spark's reader takes the first value of a text and leaves out what follows; within an object nothing may follow.
    wrapped = F.concat(F.lit('{"r":'), text, F.lit("}"))
    found = F.col(_PARSED)
    record = found.getField("r")
    broken = record.isNull() | found.getField(_BROKEN).isNotNull()
    reasons = [F.when(~F.is_valid_utf8(text), F.lit(decode.NOT_UTF8))]
    if any(field.parsed.is_nested for field in spec.columns.values()):
        shallow = read(nested=False)
        is_object = shallow.getField("r").isNotNull() & shallow.getField(_BROKEN).isNull()
        reasons.append(F.when(broken & is_object, F.lit(decode.NESTED)))
    reasons.append(F.when(broken, F.lit(decode.NOT_AN_OBJECT)))
    return _Reading(frame.withColumn(_PARSED, read(nested=True)), _raw(record, spec, numbers), reasons)


def _sources(spec: RefineSpec) -> list[str]:
    """The names that messages have for the declared fields, each once."""
    return list(dict.fromkeys(field.source or name for name, field in spec.columns.items()))


def _raw(record: Column, spec: RefineSpec, numbers: Mapping[str, str]) -> dict[str, Column]:
    return {name: record.getField(numbers[field.source or name]) for name, field in spec.columns.items()}


def _avro(frame: DataFrame, spec: RefineSpec) -> _Reading:
    from pyspark.sql.avro.functions import from_avro  # noqa: PLC0415 - few pipelines need it

    assert spec.avro_schema is not None
    # Bytes that are not a record come out as one of nulls, and what follows a record is not looked at. Between two
    # things that are known neither can go unnoticed.
    record = json.loads(avro_text(spec.avro_schema))
    numbers = {field["name"]: f"f{number}" for number, field in enumerate(record["fields"])}
    # Names are not in the messages, and Spark does not tell those apart that differ in case alone.
    record["fields"] = [{"name": numbers[each["name"]], "type": each["type"]} for each in record["fields"]]
    parts = [{"name": "head", "type": "int"}, {"name": "record", "type": record}]
    parts.append({"name": "tail", "type": {"type": "fixed", "name": "consumerd_tail", "size": len(_TAIL)}})
    schema = json.dumps({"type": "record", "name": "consumerd_framed", "fields": parts})
    data: Column = F.col("value")
    reasons = []
    if spec.avro_prefix == "confluent":
        marked = F.substring(data, 1, 1) == F.lit(b"\x00")
        reasons.append(F.when(~marked, F.lit("the message does not begin with the number of a schema")))
        data = F.substring(data, 6, _REST)
    elif spec.avro_prefix == "single-object":
        marked = F.substring(data, 1, 2) == F.lit(b"\xc3\x01")
        reasons.append(F.when(~marked, F.lit("the message is not in single-object encoding")))
        data = F.substring(data, 11, _REST)
    found = F.col(_PARSED)
    whole = F.coalesce(found.getField("tail") == F.lit(_TAIL), F.lit(False))
    reasons.append(F.when(~whole, F.lit("the message is not a record of the Avro schema")))
    framed = F.concat(F.lit(_HEAD), data, F.lit(_TAIL))
    try:
        read = frame.withColumn(_PARSED, from_avro(framed, schema, {"mode": "PERMISSIVE"}))
    except AnalysisException as error:
        if not (error.getCondition() or "").startswith("AVRO_NOT_LOADED"):
            raise
        raise ConfigError(
            f'parse = "avro" requires a jar that this session does not have: start it with --packages {AVRO_PACKAGE}, '
            "or put the jar into Spark's directory jars."
        ) from None
    raw = _raw(found.getField("record"), spec, numbers)
    _must_be_declared(read, raw, spec)
    return _Reading(read, raw, reasons)


def _must_be_declared(frame: DataFrame, raw: Mapping[str, Column], spec: RefineSpec) -> None:
    """Raise ConfigError for a nested field of another type than in the schema: nested values are not cast."""
    for name, field in spec.columns.items():
        if field.parsed.is_nested:
            (kind,) = (each.dataType.simpleString() for each in frame.select(raw[name]).schema)
            kind = kind.replace("timestamp_ntz", "timestamp")
            if kind != DataType.fromDDL(field.parsed.ddl).simpleString():
                raise ConfigError(f"{name!r} = {field.type!r} is {kind} in the Avro schema: declare that type.")


def _regex(frame: DataFrame, spec: RefineSpec) -> _Reading:
    assert spec.pattern is not None
    text = F.col("value").cast("string")
    numbers = group_numbers(spec.pattern)
    whole = rf"\A(?:{spec.pattern})\z"
    raw = {
        name: F.nullif(F.regexp_extract(text, whole, numbers[field.source or name]), F.lit(""))
        for name, field in spec.columns.items()
    }
    reasons = [
        F.when(~F.is_valid_utf8(text), F.lit(decode.NOT_UTF8)),
        F.when(~text.rlike(whole), F.lit(decode.NO_MATCH)),
    ]
    return _Reading(frame, raw, reasons)


def check_pattern(spark: SparkSession, spec: RefineSpec) -> None:
    """Raise ConfigError for a pattern that is not valid in Java."""
    if spec.pattern is None:
        return
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - only Java knows, and pyspark has no call for it
    try:
        gateway.jvm.java.util.regex.Pattern.compile(spec.pattern)
    except IllegalArgumentException as error:
        said = str(error).partition("\n")[0]
        raise ConfigError(f"invalid pattern {spec.pattern!r}: {said}.") from error


def group_numbers(pattern: str) -> dict[str, int]:
    """The numbers of the named groups of a pattern in Java's syntax."""
    numbers: dict[str, int] = {}
    count = 0
    # Quoted text, escapes and classes hold no groups; classes may be nested and have escapes.
    bare = re.sub(r"\\Q.*?(?:\\E|$)|\\.", "__", pattern, flags=re.DOTALL)
    while (shorter := re.sub(r"\[[^\[\]]*\]", "_", bare)) != bare:
        bare = shorter
    for match in re.finditer(r"\((?:(\?)(?:<([A-Za-z][A-Za-z0-9]*)>)?)?", bare):
        if match[1] is None or match[2] is not None:
            count += 1
        if match[2] is not None:
            numbers[match[2]] = count
    return numbers


_READERS: Final[Mapping[str, Callable[[DataFrame, RefineSpec], _Reading]]] = {
    "json": _json,
    "avro": _avro,
    "regex": _regex,
}
