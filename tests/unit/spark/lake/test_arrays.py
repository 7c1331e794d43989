"""Arrays from bytes are those that pyarrow makes, and need no pandas."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from consumerd.spark.lake.arrays import is_constant, repeated, texts


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("é\0", pa.string()), ("", pa.string()), (None, pa.string()), (-3, pa.int32()), (1 << 62, pa.int64()),
        (True, pa.bool_()), (False, pa.bool_()),
        (datetime(1969, 12, 31, 23, 59, 59, 1, UTC), pa.timestamp("us", "UTC")),
        (None, pa.timestamp("us", "UTC")), (2.5, pa.float64()),
    ],
)  # fmt: skip
def test_repeats_a_value_as_arrow_does(value: Any, kind: pa.DataType) -> None:
    for count in (0, 1, 9):
        made = repeated(value, kind, count)
        made.validate(full=True)
        assert made.equals(pa.repeat(pa.scalar(value, kind), count))


def test_texts_are_those_of_a_list() -> None:
    for values in ([], ["a"], ["", "ü", "xyz"]):
        made = texts(values)
        made.validate(full=True)
        assert made.equals(pa.array(values, pa.string()))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], True), (["a"], True), ([None], True), (["a", "a", "a"], True), ([None, None], True), (["", ""], True),
        (["a", "b", "a"], False), (["a", None], False), ([None, ""], False), (["ab", "a", "ba"], False),
    ],
)  # fmt: skip
def test_knows_whether_all_values_are_equal(values: list[str | None], expected: bool) -> None:
    assert is_constant(pa.array(values, pa.string())) == expected
    assert is_constant(pa.array(["x", *values, "y"], pa.string()).slice(1, len(values))) == expected


def test_importing_what_tasks_use_does_not_import_pandas() -> None:
    code = "import sys, consumerd.spark.lake.tasks, consumerd.spark.source.reading; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
