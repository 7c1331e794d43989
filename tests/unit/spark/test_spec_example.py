from __future__ import annotations

import re
from pathlib import Path

from consumerd.spark.spec import load_spark
from consumerd.spark.spec_check import check_spark
from consumerd.spark.spec_example import spark_example, whole_example

ROOT = Path(__file__).resolve().parents[3]
#: Keys that need others, or exclude one another.
_APART = {"avro_schema", "avro_prefix", "pattern"}
_NEEDED = {"root", "source", "fields", "event_time"}


def test_example_in_the_repository_is_generated() -> None:
    assert (ROOT / "config.example.toml").read_text() == whole_example()


def test_every_key_of_the_example_has_a_valid_value(tmp_path: Path) -> None:
    lines = spark_example().splitlines()
    keys = {match[1] for line in lines if (match := re.match(r"# (\w+) = ", line))}
    assert len(keys) > 15
    for key in sorted(key for key in keys - _APART if not key.startswith("registry_")):
        text = "\n".join(
            line[2:] if re.match(rf"# (\[spark.*\]$|({'|'.join(_NEEDED | {key})}) = )", line) else line
            for line in lines
        )
        (tmp_path / "c.toml").write_text(text)
        spec = load_spark(tmp_path / "c.toml")
        assert list(spec.pipelines) == ["NAME"]
        check_spark(spec)
