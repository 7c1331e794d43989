"""Kafka's own perf tools as clients of the benchmark `kafka`: what kafka-consumer-perf-test.sh and
kafka-producer-perf-test.sh start.

Strategy: the classes come by Maven with the release of the broker, and a JVM runs each with the options of the scripts.
By the clock counts what the tool itself reports: of the consumer the time of its fetches, of the producer that of its
sends. The processor time is that of the whole process, so the start of the JVM and the compilation of its code are part
of it; other clients are measured from their first message on.
"""

from __future__ import annotations

import csv
import os
import re
import resource
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from benchmarks.decode import payloads
from benchmarks.kafka_job import Job, Result
from consumerd.base.java import find_java
from tests.support.kafka import RELEASES
from tests.support.maven import fetch_jars

NAME = "Kafka's perf tool"
RELEASE = "3.9.1"
#: Bytes by which what the consumer read may differ from what it says: MiB with four decimals.
ROUNDING = (1 << 20) // 10_000 + 1
#: How long the consumer waits for messages: first of all until it has joined its group, on a machine that may be busy.
PATIENCE_MS = 120_000
#: Of bin/kafka-run-class.sh and of the scripts of both tools.
_JVM = (
    "-Xmx512M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15", "-Djava.awt.headless=true",
)  # fmt: skip
#: As in config/tools-log4j.properties: standard output is for results.
_LOG4J = b"""\
log4j.rootLogger=WARN, stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=[%d] %p %m (%c)%n
"""
#: The last line of a producer with all that it sent, and not one of those before it, which are of five seconds.
_SENT = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec .* 99\.9th\.$", re.MULTILINE)


@cache
def class_path() -> tuple[Path, ...]:
    """The jars of the tools. Raises MissingRuntimeError where they cannot be fetched. Blocks."""
    release = RELEASES[RELEASE]
    return tuple(fetch_jars([*release.coordinates, f"org.apache.kafka:kafka-tools:{release.version}"]))


def consume(job: Job, settings: Mapping[str, object]) -> Result:
    """Read all messages of a topic with these settings. Raises SystemExit."""
    with tempfile.TemporaryDirectory(prefix="consumerd-perf-") as folder:
        config = Path(folder) / "consumer.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), "ascii")
        said, spent = _run(
            "ConsumerPerformance",
            "--bootstrap-server", job.bootstrap, "--topic", job.topic, "--messages", str(job.messages),
            "--consumer.config", str(config), "--timeout", str(PATIENCE_MS),
        )  # fmt: skip
    seconds, mib = consumed(said, job.messages)
    return Result(job.messages, seconds, spent, round(mib * (1 << 20)))


def produce(job: Job, settings: Mapping[str, object]) -> Result:
    """Send values of a topic with these settings: the tool picks them at random. Raises SystemExit."""
    with tempfile.TemporaryDirectory(prefix="consumerd-perf-") as folder:
        values = Path(folder) / "values"
        values.write_bytes(b"".join(value + b"\n" for value in payloads(job.size)))
        pairs = [f"bootstrap.servers={job.bootstrap}", *(f"{key}={value}" for key, value in settings.items())]
        said, spent = _run(
            "ProducerPerformance",
            "--topic", job.topic, "--num-records", str(job.messages), "--throughput", "-1",
            "--payload-file", str(values), "--producer-props", *pairs,
        )  # fmt: skip
    return Result(job.messages, sent(said, job.messages), spent, job.messages * job.size)


def consumed(said: str, messages: int) -> tuple[float, float]:
    """Seconds of fetching, and MiB of values: from the header and the line that the consumer prints."""
    lines = [line for line in said.splitlines() if ", " in line]
    if len(lines) != 2 or not lines[0].startswith("start.time"):
        raise SystemExit(f"{NAME} printed no result: {said}")
    header, values = csv.reader(lines, skipinitialspace=True)
    row = dict(zip(header, values, strict=True))
    if int(row["data.consumed.in.nMsg"]) != messages:
        raise SystemExit(f"{NAME} consumed {row['data.consumed.in.nMsg']} messages instead of {messages}")
    return int(row["fetch.time.ms"]) / 1000, float(row["data.consumed.in.MB"])


def sent(said: str, messages: int) -> float:
    """Seconds of sending: from the last line that the producer prints."""
    match = _SENT.search(said)
    if match is None or int(match[1]) != messages:
        raise SystemExit(f"{NAME} did not print that it sent {messages} messages: {said}")
    return messages / float(match[2])


def _run(program: str, *arguments: str) -> tuple[str, float]:
    """The standard output of a tool, and the processor seconds of its process. Raises SystemExit."""
    jars = os.pathsep.join(map(str, class_path()))
    java = str(find_java().executable)
    with tempfile.NamedTemporaryFile(suffix=".properties") as log:
        log.write(_LOG4J)
        log.flush()
        options = [*_JVM, f"-Dlog4j.configuration={Path(log.name).as_uri()}", "-cp", jars]
        command = [java, *options, f"org.apache.kafka.tools.{program}", *arguments]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{program} failed: its complaint is above")
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
