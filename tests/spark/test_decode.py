"""The decoder without Spark and Spark's `parse` agree about each message: the same reason, or the same values."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from consumerd.net.schemas.registry import RegistryUnavailableError
from consumerd.service.config.validation import table_of
from consumerd.spark.failures import declared_errors
from consumerd.spark.lake.decode import MessageDecoder
from consumerd.spark.parsing import REASON, declared_fields, parse
from consumerd.spark.spec_model import RefineSpec
from tests.support.schema_registry import SchemaRegistryServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: One field for each kind of type; all are in one frame, so that Spark runs one job.
TYPES = {
    "t8": "tinyint", "t16": "smallint", "t32": "int", "t64": "bigint not null", "f": "float", "d": "double",
    "b": "boolean", "s": "string", "x": "binary", "day": "date", "ts": "timestamp", "sec": "timestamp_s",
    "ms": "timestamp_ms", "us": "timestamp_us", "dec": "decimal(5,2)", "big": "decimal(38,6)",
    "n8": "array<tinyint>", "n64": "array<bigint>", "nf": "array<float>", "nd": "array<double>",
    "nb": "array<boolean>", "ns": "array<string>", "nx": "array<binary>", "nday": "array<date>",
    "nts": "array<timestamp>", "ndec": "array<decimal(5,2)>", "m": "map<string,int>",
    "o": "struct<a:int,b:string,c:array<struct<d:double>>>",
}  # fmt: skip

SPEC = table_of(RefineSpec, {"fields": TYPES})
TIMES = (
    """
2020-01-02|2020-1-2|2020|2020-01|12345|123456|1234567|12345678|-5|+2020-01-02|-2020-01-02|0000-01-01|999|2020-02-30
-60454447|-00719165|-00719164|-00141428|-00141427|-2147483648|-2147483649| GMT2020-01-02|2020-01-02GMT|2020-GMT01-GMT02
2020-01-02x|2020-01-02 x|2020-01-02T|2020-01-02 |2020-001-02|5881580-07-11|5881580-07-12|-5877641-06-22|2019-02-29
2020-01-02 03:04:05|2020-01-02T03:04:05Z|2020-01-02T03:04:05.123456789|2020-01-02T03:04:05.1|2020-01-02T3:4:5
2020-01-02T03:04:05+01:00|2020-01-02T03:04:05+0100|2020-01-02T03:04:05+1|2020-01-02T03:04:05+1:0
2020-01-02T03:04:05Europe/Paris|2020-07-02T03:04:05 Europe/Paris|2020-03-29T02:30:00Europe/Paris
2020-10-25T02:30:00 Europe/Paris|12020-07-02T00:00:00Europe/Paris|2020-01-02T03:04:05 PST|2020-01-02T03:04:05GMT-08:00
2020-01-02T03|2020-01-02T03:04|2020-01-02T24:00:00|2020-01-02T23:59:60|2020-01-02T03:04:05.|2020-01-02T03:04:05.Z
2020-01-02T03:04:05UTC+1:2|2020-01-02T03:04:05+18:00|2020-01-02T03:04:05+19:00|2020-01-02T03:04:05z|2020-01-02Z
2020-01-02T03:04Z|02020-01-02|2020-01-02T03:04:05GMT0|2020-01-02T03:04:05europe/paris|GMT2020-01-02|1582-10-10
294247-01-10T04:00:54.775807Z|294247-01-10T04:00:54.775808Z|-290308-12-21T19:59:05.224192Z|9999-12-31T23:59:59.999999
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
NUMBERS = """
0 1 -1 127 128 255 256 -128 -129 32767 32768 2147483647 2147483648 -2147483649 9223372036854775807 -9223372036854775808
9223372036854775808 123456789012345678901234567890 1.0 1.5 -0 -0.0 0.1 1e2 1E+2 1e-3 1.005 999.99 999.994 999.995
1e20 1e31 1e38 1e40 1e400 -1e400 1e-400 0e37 0e38 0e-50 16777217 1152921573326323713 1152921573326323712 3.4028235e38
1.00000017881393432617187499 9007199254740993 1295000000 1295000000123 1295000000123.5 1295000000123456 253402300799999
253402300800000 -62135596800000 -62135596800001 9223372036854 9223372036855 99999999999999999999999999999999
""".split()  # noqa: SIM905 - a table
TEXTS = [
    "", " ", "a", "1.", ".5", ".", "+1", "-", "1e", "1_0", "1,0", "1,000", "1d", "1F", "0x1p3", "0x1.8P1d", "0x1",
    "0x1.00000100000000001p0", "NaN", "nan", "+NaN", "Infinity", "-INF", "+inf", "INF", "infinity", "t", "TRUE", "yes",
    "N", "on", "0", "null", "true", "00000000000000000000000000000001", "\u0661", "YWJj", "YWI=", "YWI", "YQ=", "YQ==",
    "YR==", "YWJj YWJj", "YQ==YQ==", "Y W J j", "YQ ==", "YQ== ", "YWJj\u2003", "-_-_", "\u2003 1", "\ufeff1", "é€😀",
]  # fmt: skip
RAW = r"""
true false null NaN Infinity -Infinity +Infinity +INF -INF INF -NaN [] {} [[]] [1,2] [null] [true] [""] [1,"x",null,1.50]
{"a":1} {"a":"1"} {"a":null,"b":{"x":[1.50,"\u001f/\"",null,true,"😀"]}} {"a":1,"a":2} {"a":"x","a":1} {"b":5,"c":[{"d":1}]}
{"c":[{"d":"NaN"},null,{"e":1}]} {"c":[1]} "\ud83d\ude00" "\ud800" "\ud800x" ["\ud800","\ud83d\ude00",["\ud800"]] {"\ud800":1}
'x' 'x"y' 'x\'y' "a\'b" "\q" "\u12" "\u12G4" 01 1. -01 +1 --1 1e 1e+ tru nullx 1x "a [1 {"a":1 [1,] {,} {"a"} {"a":} [1}
"""  # noqa: E501 - a table
#: Texts with control characters, which Spark accepts as nested Base64 alone.
CONTROL = [
    '"\x01YWJj"', '"\x00"', '"YWJj\n YQ=="', '"Y\x01WJj"', '"YWJj\x1f"', '"YWI=\x01YWI="', '"\x01\\u0059WJj"',
    '"\x01\\u0001YWJj"', '"\x01YWJj\\""', '"\x01YWJ"', '"\x01-_-_"', "'\x01YWJj'", '"\x01YWJj', '"\x7fYWJj"',
    '["\x01YWJj"]', '{"b":"\x01YWJj"}', '{"z":"\x01YWJj"}', '{"\x01":1}',
]  # fmt: skip
WHOLE = [
    b"", b" ", b"null", b"5", b'"x"', b"[]", b'[{"t64":1}]', b"{", b"}", b"{}", b' \t\r\n{"t64":1} ', b'\x0b{"t64":1}',
    b'\xef\xbb\xbf{"t64":1}', b'{"t64":1}\x00', b'{"t64":1,}', b"{t64:1}", b"{'t64':1}", b'{"t64":1}}garbage',
    b'{"t64":1},"t64":5', b'{"t64":1},"r":{"t64":2}', b'{"t64":1},"r":null', b'{"t64":1},"r":5', b'5,"r":{"t64":2}',
    b'null,"r":{"t64":2}', b'{"n8":5},"r":{"t64":2}', b'{"t64":1} x', b'{"t64":1}//x', b'{"t64":1,"t64":null}',
    b'{"t64":"x","t64":1}', b'{"t64":1,"n8":5,"n8":[1]}', b'{"t64":1,"n8":[1],"n8":5}', b'{"\\u00746\\u0034":1}',
    b'{"t64":1,"\\u006e8":5,"n8":[1]}', b'{"T64":1}', b'{"t64":1,"s":"\xff"}', b'{"t64":1,"z":"\xff"}', b"\xff\xfe",
    b'{"t64":1,"s":"\xed\xa0\x80"}', b'{"t64":1,"s":"\xc0\x80"}', b'{"t64":1,"s":"\xf4\x90\x80\x80"}',
    b'{"t64":1,"s":"a\nb"}', b'{"t64":1,"z":"a\nb"}', b'{"t64":1,"s":"\x7f\xc2\x80"}', b'{"t64":1\xc2\xa0}',
    b'{"t64":1,"n8":5,"s":"\xff"}', b'{"n8":5', b'{"t64":1,"n8":[1}', b'{"t64":1,"nx":["\x01YWJj"],"n8":5}',
    b'{"t64":1,"nx":["\x01YWJj"],"z":["\x01YWJj"]}', b'{"t64":1,"nx":["\x01YWJj","x"],"nx":["YWJj"]}',
    b'{"t64":1,"nx":["\x01YWJj"],"nx":["YWJj"]}', b'{"t64":1,"nx":["\x01YWJj"],"ns":["\x01YWJj"]}',
    b'{"t64":1,"nx":["\x01YWJj"]},"r":null', b'{"t64":1,"nx":["\x01YWJj"]},"r":{"t64":2}',
    b'{"t64":1,"nx":["\x01YWJj"]},"x":"\x01YWJj"', b'{"t64":1,"nx":["\x01YWJj"]}}"\x01',
]  # fmt: skip
LONG = [
    b'{"t64":1,"s":%s}' % (b"[" * depth + b"]" * depth) for depth in (100, 997, 998, 999, 1500)
] + [
    b'{"t64":1,"z":%s}' % (b"[" * depth + b"]" * depth) for depth in (998, 999)
] + [
    b'{"t64":1,"s":%s%s}' % (sign, b"1" * digits) for sign in (b"", b"-") for digits in (1000, 1001)
] + [
    b'{"t64":1,"z":%s.%s}' % (b"1" * whole, b"2" * (total - whole)) for whole in (1, 500) for total in (1000, 1001)
] + [
    b'{"t64":1,"%s":1}' % (b"x" * size) for size in (50_000, 50_001)
] + [
    b'{"t64":1,"s":"%s"}' % (b"x" * 60_000), b'{"t64":1,"z":1%se5}' % (b"1" * 998),
    b'{"t64":1,"z":1%se55}' % (b"1" * 998),
    b'{"t64":1,"ns":["%s"],"n8":[1,255]}' % (b"y" * 2000), b'{"t64":"%s1"}' % (b"0" * 5000),
]  # fmt: skip


def borders() -> Iterator[bytes]:
    """Each border value in each field."""
    quoted = [json.dumps(text, ensure_ascii=False) for text in [*TIMES, *TEXTS, *NUMBERS]]
    raw = [
        *NUMBERS,
        *RAW.split(),
        *quoted,
        *CONTROL,
        *(json.dumps(f" {text}\u0000\u007f ") for text in NUMBERS[::4] + TIMES[::4]),
    ]
    for name, kind in TYPES.items():
        other = "" if name == "t64" else ',"t64":1'
        is_array = kind.startswith("array<")
        for value in RAW.split() if is_array else raw:
            yield f'{{"{name}":{value}{other}}}'.encode()
        if is_array:
            for value in raw:
                yield f'{{"{name}":[{value}]{other}}}'.encode()
    yield from WHOLE
    yield from LONG


def generated(rng: random.Random) -> bytes:
    """A random message, most of them nearly valid."""
    members = []
    for _ in range(rng.randrange(1, 5)):
        name = rng.choice([*TYPES, "t64", "z"])
        value = _value(rng, 0)
        if TYPES.get(name, "").startswith("array<") and rng.random() < 0.7:
            value = f"[{value}]"
        members.append(f'"{name}":{value}')
    members.insert(rng.randrange(len(members) + 1), f'"t64":{rng.randrange(1 << 40)}')
    gap = rng.choice(["", "", " ", "\n"])
    data = f"{{{f',{gap}'.join(members)}{gap}}}".encode("utf-8", "surrogatepass")
    if rng.random() < 0.15:  # damage
        at = rng.randrange(len(data))
        data = data[:at] + rng.choice([b"", b"\xff", b"{", b"}", b"\\", b'"', b",", b"\x00", b"0"]) + data[at + 1 :]
    return data


def _value(rng: random.Random, depth: int) -> str:
    choice = rng.random()
    if choice < 0.25:
        number = rng.choice(NUMBERS) if rng.random() < 0.5 else _number(rng)
        return number if rng.random() < 0.7 else f'"{number}"'
    if choice < 0.4:
        return json.dumps(rng.choice(TIMES) if rng.random() < 0.5 else _time(rng))
    if choice < 0.6:
        return json.dumps(rng.choice(TEXTS), ensure_ascii=rng.random() < 0.5)
    if choice < 0.7:
        size = rng.randrange(8)
        return json.dumps("".join(rng.choice("aé\u2003😀\ud800\udc00\\\"\x1f/'-+.:0129TZ= ") for _ in range(size)))
    if choice < 0.85 or depth > 3:
        return rng.choice(RAW.split())
    if choice < 0.93:
        return f"[{','.join(_value(rng, depth + 1) for _ in range(rng.randrange(3)))}]"
    members = ",".join(f'"{rng.choice("abcd")}":{_value(rng, depth + 1)}' for _ in range(rng.randrange(3)))
    return f"{{{members}}}"


def _number(rng: random.Random) -> str:
    # Java before 19 writes some doubles of more digits, or more zeros, with other digits.
    whole = str(rng.choice([rng.randrange(10), rng.randrange(10**6), rng.randrange(1 << rng.randrange(1, 130))]))
    if rng.random() < 0.5:
        return rng.choice(["", "-"]) + whole
    return f"{rng.choice(['', '-'])}{rng.randrange(10**5)}.{rng.randrange(10**5)}{rng.choice(['', 'e1', 'E-2', 'e5'])}"


def _time(rng: random.Random) -> str:
    day = f"{rng.randrange(1, 10_000):04}-{rng.randrange(1, 14)}-{rng.randrange(1, 32):02}"
    clock = f"{rng.randrange(25)}:{rng.randrange(61):02}:{rng.randrange(61):02}"
    return day + rng.choice("T  x") + clock + rng.choice(["", ".5", ".123456", "Z", "+02:00", "-0930", " UTC", "?"])


def verdicts(spark: SparkSession, messages: list[bytes], spec: RefineSpec = SPEC) -> list[tuple[bytes, Any, Any]]:
    """The messages about which the two do not agree, with the result of both."""
    frame = spark.createDataFrame(
        [(number, bytearray(each)) for number, each in enumerate(messages)], "n int, value binary"
    )
    parsed = parse(frame, spec).select("n", *declared_fields(spec), REASON).toArrow().sort_by("n")
    expected: list[Any] = [
        values if reason is None else reason
        for values, reason in zip(_plain(parsed.select(list(spec.columns))), parsed["reason"].to_pylist(), strict=True)
    ]
    found = MessageDecoder(spec).decode(pa.record_batch({"value": pa.array(messages, pa.binary())}))
    assert found.columns.schema.types == parsed.select(list(spec.columns)).schema.types
    fitting, reasons = iter(_plain(pa.table(found.columns))), iter(found.reasons.to_pylist())
    actual = [next(fitting) if good else next(reasons) for good in found.good.to_pylist()]
    assert next(fitting, None) is None
    assert next(reasons, None) is None
    three = zip(messages, expected, actual, strict=True)
    return [each for each in three if repr(each[1]) != repr(each[2])]


def _plain(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows with dates and times as numbers: Python has fewer of them."""
    columns = [column.cast(_physical(column.type)).to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True))


def _physical(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _physical(kind.value_type)))
    return pa.int32() if pa.types.is_date(kind) else pa.int64() if pa.types.is_timestamp(kind) else kind


def test_decodes_as_spark_does(spark: SparkSession) -> None:
    messages = [*borders(), *(generated(random.Random(seed)) for seed in range(1000))]
    differing = verdicts(spark, messages)
    assert differing == []
    divided = table_of(RefineSpec, {"fields": {"ts": "timestamp"}, "partition_by": ["date(ts)"]})
    assert verdicts(spark, [json.dumps({"ts": text}).encode() for text in TIMES], divided) == []


PATTERN = r"(?<a>\d+|[^ \d]*)(?: (x))?(?<b>[\s\-A-Z]*+)(?:(?<c>a|ab)(?:c|bcd))?(?<d>.{0,4}?)\S?"


def test_reads_lines_as_spark_does(spark: SparkSession) -> None:
    rng = random.Random(1)
    lines = [
        "".join(rng.choice("12 x\t\n\r\x0b\x85\u2028-AZabcdé😀\x1c_") for _ in range(rng.randrange(9))).encode()
        for _ in range(2000)
    ]
    fields = {"a": "int", "b": "binary", "c": "string", "d": "string not null"}
    spec = table_of(RefineSpec, {"parse": "regex", "pattern": PATTERN, "fields": fields})
    assert verdicts(spark, [*lines, b"", b"\xff", *(each.encode() for each in TEXTS)], spec) == []


def test_reads_messages_of_a_schema_registry_as_tasks_do(spark: SparkSession) -> None:
    with SchemaRegistryServer() as registry:
        key = registry.add({"type": "object"}, kind="JSON")
        fields = TYPES | {"value": "string"}  # also the name of the column with the message
        spec = table_of(RefineSpec, {"parse": "schema_registry", "registry_url": registry.url, "fields": fields})
        frame = b"\x00" + int(key).to_bytes(4)
        messages = [
            b"",
            b"\x00\x00\x00\x00\x63",
            *(frame + each for each in WHOLE),
            frame + b'{"t64":1,"ts":"2020-01-02","value":"x"}',
        ]
        assert verdicts(spark, messages, spec) == []
        registry.script.append((503, b""))
        with pytest.raises(RegistryUnavailableError, match="status 503"), declared_errors():
            parse(spark.createDataFrame([(b"\x00\x00\x00\x00\x09",)], "value binary"), spec).collect()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_decodes_a_million_messages_as_spark_does(spark: SparkSession) -> None:
    for first in range(0, 1_000_000, 50_000):
        rng = random.Random(first)
        assert verdicts(spark, [generated(rng) for _ in range(50_000)]) == []
