"""The packaged environment for executors is enough to read a split, beside Spark and a bare Python of the node.

No Spark runs here. `tests/spark/test_cluster.py` has the same package on a standalone cluster (`long`).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from consumerd.wire.v07 import Codec, encode_message_set

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 250
#: What a task does: it unpickles a reader and reads a split of each codec; the modules tell where they are from.
TASK = """
import json, sys
import pyarrow, isal, pyspark
import consumerd.spark.source.datasource
import consumerd.spark.source.v07.reading as reading
import consumerd.spark.source.v08.reading
from consumerd.spark.source.request import ReadRequest
from consumerd.spark.source.split import FileRange, V07Split
path, end = sys.argv[1], int(sys.argv[2])
split = V07Split("events", 2, 3, 0, end, FileRange(path, 0))
batches = reading.read_split(split, ReadRequest(("value",)))
values = [row["value"].decode() for batch in batches for row in batch.to_pylist()]
print(json.dumps([values, [module.__file__ for module in (pyarrow, isal, reading)], pyspark.__file__, sys.path]))
"""


def test_executors_read_a_split_with_only_the_packaged_environment(
    tmp_path: Path, missing: Callable[[str], NoReturn]
) -> None:
    if sys.prefix == sys.base_prefix:
        missing("the tests run in no virtual environment, so that there is nothing that executors could do without")
    package = [sys.executable, str(ROOT / "deploy" / "spark" / "package.py"), "--executors-only", "-o", str(tmp_path)]
    subprocess.run(package, cwd=tmp_path, timeout=TIMEOUT, check=True, stdout=subprocess.DEVNULL)
    unpacked = tmp_path / "unpacked"
    with tarfile.open(tmp_path / "consumerd-environment.tar.gz") as archive:
        archive.extractall(unpacked, filter="data")
    spark = tmp_path / "spark"
    spark.mkdir()
    for name in ("pyspark", "py4j"):  # the node's own
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (spark / name).symlink_to(Path(spec.origin).parent)
    data = b"".join(encode_message_set([b"%d" % number], codec=codec) for number, codec in enumerate(Codec))
    (tmp_path / "segment").write_bytes(data)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    done = subprocess.run(
        [unpacked / "bin" / "python", "-c", TASK, tmp_path / "segment", str(len(data))],
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(spark),
            "CONSUMERD_NODE_PYTHON": str(Path(sys.base_prefix) / "bin" / f"python{version}"),
        },
        cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    values, ours, sparks, path = json.loads(done.stdout)
    assert values == [str(number) for number, _ in enumerate(Codec)]
    assert all(Path(each).is_relative_to(unpacked / "lib") for each in ours), ours
    assert Path(sparks).is_relative_to(spark)
    assert str(ROOT) not in path
