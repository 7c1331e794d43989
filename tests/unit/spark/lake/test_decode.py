"""What the comparison with Spark (`tests/spark/test_decode.py`) leaves out: other columns of bronze, limits of time."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from consumerd.base.errors import ConfigError
from consumerd.service.config.validation import table_of
from consumerd.spark.lake.casts import zone_of
from consumerd.spark.lake.decode import MessageDecoder, MessageFormat
from consumerd.spark.spec_model import RefineSpec


def decoder(**fields: str) -> MessageDecoder:
    return MessageDecoder(table_of(RefineSpec, {"fields": fields}))


def test_names_what_the_source_could_not_read_before_what_the_message_lacks() -> None:
    rows = pa.record_batch(
        {
            "value": pa.array(
                [b'{"id":1}', b"\xff", None, b"\xff", b"{", b'{"id":"x"}', b"{}", b'{"id":7}'], pa.binary()
            ),
            "crc_ok": pa.array([True, False, False, True, None, True, True, None]),
            "_corrupt": pa.array([None, "bad", "bad", "bad", None, None, None, None], pa.string()),
        }
    )
    found = decoder(id="int not null").decode(rows)
    assert found.columns.to_pydict() == {"id": [1, 7]}
    assert found.good.to_pylist() == [True, False, False, False, False, False, False, True]
    assert found.reasons.to_pylist() == [
        "the CRC is wrong", "the CRC is wrong", "corrupt in the log", "the message is not a JSON object",
        "id is not a int", "id is missing",
    ]  # fmt: skip


def test_a_field_may_be_stored_twice_and_have_any_name_in_the_message() -> None:
    fields = {"a": {"type": "int", "from": "x y"}, "b": {"type": "string", "from": "x y"}}
    spec = table_of(RefineSpec, {"fields": fields})
    found = MessageDecoder(spec).decode(pa.record_batch({"value": pa.array([b'{"x y":5}'], pa.binary())}))
    assert found.columns.to_pylist() == [{"a": 5, "b": "5"}]


@pytest.mark.timeout(10)
def test_reads_a_cut_message_in_linear_time() -> None:
    cut = b'{"a":"' + b"x" * 100_000
    found = decoder(a="string").decode(
        pa.record_batch({"value": pa.array([cut, cut + b"\\q", b"[" * 5000], pa.binary())})
    )
    assert found.reasons.to_pylist() == ["the message is not a JSON object"] * 3


def test_decimals_with_huge_exponents_end_no_batch() -> None:
    values = [b'{"a":"1e%s"}' % exponent for exponent in (b"-2147483647", b"2147483647", b"-99999999999", b"2")]
    found = decoder(a="decimal(5,2)").decode(pa.record_batch({"value": pa.array(values, pa.binary())}))
    assert found.columns.column("a").to_pylist() == [Decimal("0.00"), Decimal("100.00")]
    assert found.reasons.to_pylist() == ["a is not a decimal(5,2)"] * 2


def test_nested_dates_in_the_legacy_forms_are_those_of_spark() -> None:
    texts = ["-60454447", "-00141428", "-00141427", "12345678", " GMT2020-01-02", "2020-01-02GMT"]
    values = [b'{"a":["%s"]}' % text.encode() for text in [*texts, "-2147483649"]]
    found = decoder(a="array<date>").decode(pa.record_batch({"value": pa.array(values, pa.binary())}))
    days = found.columns.column("a").values.cast(pa.int32()).to_pylist()
    assert days == [-60453218, -141438, -141427, 12345678, 18263, 18263]
    assert found.reasons.to_pylist() == ["a nested field does not have its declared type"]


def test_reports_what_only_spark_can_parse() -> None:
    spec = table_of(RefineSpec, {"parse": "regex", "pattern": "(?<a>x)(?<=x)", "fields": {"a": "string"}})
    assert MessageFormat.of(table_of(RefineSpec, {"fields": {"a": "map<string,int>"}})).needs_spark is None
    with pytest.raises(ConfigError, match="requires Spark: run the step `refine` with `consumerd spark`"):
        MessageDecoder(spec)


@pytest.mark.parametrize("name", ["Mars/Base", "ROC", "+25:00", "utc", ""])
def test_refuses_zones_that_java_does_not_have(name: str) -> None:
    assert zone_of(name) is None
