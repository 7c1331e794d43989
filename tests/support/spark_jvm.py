"""The JVMs of Spark in tests, which start often and live for seconds.

Strategy: a JVM reads and checks the classes of Spark at each start, two fifths of the processor time of a short job.
`python -m tests.support.spark_jvm` stores them once, as a small pipeline leaves them, in an archive beside the virtual
environment, and later JVMs map that (application class-data sharing). A JVM that cannot use the archive, such as one of
another release of Java, ignores it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from consumerd.wire.compression import Codec
from consumerd.wire.v07 import encode_message_set

#: The second compiler costs more than it saves in a minute of small jobs.
QUICK_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Written by `make test-all`.
CLASSES: Final = Path(sys.prefix) / "spark-classes.jsa"
_SILENT: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"


def share_classes() -> None:
    """Let each JVM of Spark that this process and its children start use the archive, if there is one."""
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    if CLASSES.is_file() and str(CLASSES) not in given:
        os.environ["SPARK_SUBMIT_OPTS"] = f"{given} {_SILENT} -XX:SharedArchiveFile={CLASSES}".strip()


def quick_options() -> str:
    """Of a JVM whose session has no configuration: the value of SPARK_SUBMIT_OPTS."""
    return f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {QUICK_JVM}".strip()


def store_classes(archive: Path) -> None:
    """Run a small pipeline, whose JVM writes the archive at its end."""
    # Not for those who only want the options.
    from consumerd.spark.run import run_pipeline
    from consumerd.spark.session import build_session
    from consumerd.spark.spec import parse_spark

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log" / "t-0"
        log.mkdir(parents=True)
        lines = [json.dumps({"id": number}).encode() for number in range(100)] + [b"no JSON"]
        (log / f"{0:020}.kafka").write_bytes(encode_message_set(lines) + encode_message_set(lines, codec=Codec.GZIP))
        pipeline = {
            "source": {"path": str(log.parent), "broker": 0, "subscribe": "t"},
            "refine": {"fields": {"id": "bigint not null"}},
        }
        spec = parse_spark({"spark": {"root": f"{folder}/lake", "pipelines": {"p": pipeline}}}, "spark_jvm")
        config = {
            "spark.driver.extraJavaOptions": f"{QUICK_JVM} {_SILENT} -XX:ArchiveClassesAtExit={archive}",
            "spark.sql.shuffle.partitions": "2",
            "spark.log.level": "ERROR",
        }
        session = build_session("local[2]", config=config)
        gateway = session.sparkContext._gateway  # pyspark does not wait for the end of its JVM
        assert gateway is not None
        run_pipeline(session, spec.pipeline(), ("land", "refine", "compact"))
        session.stop()
        gateway.proc.stdin.close()
        gateway.proc.wait()


if __name__ == "__main__":
    written = CLASSES.with_suffix(".new")
    written.unlink(missing_ok=True)
    store_classes(written)
    written.replace(CLASSES)
