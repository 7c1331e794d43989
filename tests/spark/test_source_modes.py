"""Rows for messages that cannot be read, in each mode, and for compressed segments."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PythonException

from consumerd.wire.v07 import Codec, encode_message, encode_message_set

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOOD = encode_message_set([b"one", b"two", b"three"])
BAD = encode_message(b"lost")[:-1] + b"X"
ZIPPED = encode_message_set([b"a", b"b"], codec=Codec.GZIP)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition with a bad message in its first segment, and a second one that is packed."""
    place = tmp_path / "clicks-0"
    place.mkdir()
    first = GOOD + BAD + ZIPPED + GOOD
    (place / f"{0:020d}.kafka").write_bytes(first)
    (place / f"{len(first):020d}.kafka.gz").write_bytes(gzip.compress(GOOD))
    return tmp_path


def read(spark: SparkSession, folder: Path, **options: Any) -> DataFrame:
    return spark.read.format("consumerd").options(path=str(folder), broker=0, subscribe="clicks", **options).load()


def test_modes_handle_malformed_messages(spark: SparkSession, folder: Path) -> None:
    good = [b"one", b"two", b"three"]
    expected = [*good, b"losX", b"a", b"b", *good, *good]
    rows = read(spark, folder).orderBy("offset", "index").collect()
    assert [bytes(row.value) for row in rows] == expected
    assert [row.crc_ok for row in rows] == [value != b"losX" for value in expected]
    (bad,) = (row for row in rows if row._corrupt is not None)
    assert (bad.offset, bad.next_offset) == (len(GOOD), len(GOOD) + len(BAD))
    assert f"the message at offset {len(GOOD)} has a CRC of" in bad._corrupt

    dropped = read(spark, folder, mode="DROPMALFORMED")
    assert "_corrupt" not in dropped.columns
    assert [bytes(row.value) for row in dropped.orderBy("offset", "index").collect()] == [
        value for value in expected if value != b"losX"
    ]
    with pytest.raises(PythonException) as caught:
        read(spark, folder, mode="FAILFAST").collect()
    assert f"MalformedMessageError: clicks/0-0 cannot be read at offset {len(GOOD)}: the message" in str(caught.value)
