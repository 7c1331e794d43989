"""The readers of docs/spark.md see every row once: before and after a compaction, and after a new field."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from consumerd.spark.lake.days import Days, DayWriter
from consumerd.spark.tables import open_table

PAGE = (Path(__file__).parents[4] / "docs" / "spark.md").read_text("utf-8")
READERS = dict(re.findall(r"```python\n# (\w+)_reader\.py\n(.*?)```", PAGE, re.DOTALL))
COLUMNS = pa.schema([("page", pa.string()), ("at", pa.timestamp("us", "UTC")), ("batch", pa.int64())])
DAILY = Days("at", "at_date")


def add(table: Any, batch: int, days: Days | None, schema: pa.Schema = COLUMNS) -> None:
    """Each third row has no time."""
    at = None if batch % 3 == 2 else datetime(2026, 1, 2, tzinfo=UTC)
    row = {"page": f"p{batch}", "at": at, "batch": batch, "agent": "curl"}
    with DayWriter(table.path, schema, days) as writer:
        writer.write(pa.RecordBatch.from_pylist([row], schema=schema))
        files = writer.close()
    stored = schema if days is None else days.stored(schema)
    assert table.commit(files, writer="c0ffee", batch=batch, schema=stored, days=days)


def rows(reader: str, path: Path) -> list[tuple[str, int]]:
    """What the page's program finds."""
    assert READERS[reader].count("/lake/clicks/silver") == 1
    found: dict[str, Any] = {}
    exec(compile(READERS[reader].replace("/lake/clicks/silver", str(path)), reader, "exec"), found)
    match found["rows"]:
        case list() as read:
            return sorted(map(tuple, read))
        case pa.Table() as read:
            return sorted((row["page"], row["batch"]) for row in read.to_pylist())
        case read if "polars" in type(read).__module__:
            return sorted(read.rows())
        case read:
            return sorted(read.itertuples(index=False, name=None))


def test_page_has_a_program_for_each_reader() -> None:
    assert READERS.keys() == {"lake", "pandas", "pyarrow", "polars", "duckdb", "spark"}


@pytest.mark.parametrize("days", [None, DAILY], ids=["whole", "by day"])
@pytest.mark.parametrize("reader", ["lake", "pandas", "pyarrow", "polars", "duckdb"])
def test_reader_sees_every_row_once(reader: str, days: Days | None, tmp_path: Path) -> None:
    pytest.importorskip("pandas" if reader == "lake" else reader, reason=f"{reader} is not installed")
    table = open_table(None, str(tmp_path / "silver"))
    for batch in range(4):
        add(table, batch, days)
    before = [(f"p{batch}", batch) for batch in range(4)]
    assert rows(reader, tmp_path / "silver") == before
    assert table.optimize(1 << 20).merged == 1
    assert rows(reader, tmp_path / "silver") == before
    add(table, 4, days, COLUMNS.insert(0, pa.field("agent", pa.string())))
    assert rows(reader, tmp_path / "silver") == [*before, ("p4", 4)]
    assert len(table.vacuum(0)) == (4 if days is None else 3)
    assert rows(reader, tmp_path / "silver") == [*before, ("p4", 4)]


def test_open_table_needs_no_spark_without_a_session(tmp_path: Path) -> None:
    import subprocess

    code = (
        "import sys\nsys.modules['pyspark'] = sys.modules['py4j'] = None\n"
        f"from consumerd.spark.tables import open_table\nassert not open_table(None, {str(tmp_path)!r}).exists"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
