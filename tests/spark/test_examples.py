"""`examples/spark-archive` counts the words of an archive."""

from __future__ import annotations

import sys
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

from consumerd.wire.v07 import Codec, encode_message_set

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "spark-archive" / "top_words.py"


def test_example_counts_the_words_of_an_archive(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "clicks-0"
    folder.mkdir()
    data = encode_message_set([b"the cat", b"the hat"]) + encode_message_set([b"a cat", b"the end"], codec=Codec.GZIP)
    (folder / "00000000000000000000.kafka").write_bytes(data)
    spec = util.spec_from_file_location("top_words", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules.setdefault("top_words", util.module_from_spec(spec))
    spec.loader.exec_module(module)
    rows = module.top_words(spark, str(tmp_path), "clicks", 2).collect()
    assert [(row.word, row["count"]) for row in rows] == [("the", 3), ("cat", 2)]
