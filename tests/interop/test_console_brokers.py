"""`consumerd produce` and `consumerd consume` on real brokers of 0.8 and later."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.demo.processes import clean_environment, consumerd_command
from consumerd.producer.v08.routing import key_partition
from tests.support.kafka import RELEASES

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
PARTITIONS = 3
#: Daily runs test the parts that only 0.8.2 has elsewhere: `topics create --zookeeper` in test_tools_brokers, `produce`
#: and `consume` with `--zookeeper`, and `--group` without it, in test_old_consumer_groups.
EVERYDAY = ("3.9.1",)
KEYED = [(b"key %d" % (number % 40), b"value %d \xff" % number) for number in range(1000)]


async def consumerd(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    def run() -> subprocess.CompletedProcess[bytes]:
        command = consumerd_command(*arguments)
        return subprocess.run(
            command, input=stdin, capture_output=True, env=clean_environment(), timeout=120, check=False
        )

    return await asyncio.to_thread(run)


async def well(*arguments: str, stdin: bytes = b"") -> list[bytes]:
    """The lines of a command that goes well; a cluster that is new may be waited for with a warning."""
    done = await consumerd(*arguments, stdin=stdin)
    assert done.returncode == 0, (arguments, done)
    assert all(b'"level": "warning"' in line for line in done.stderr.splitlines()), (arguments, done)
    return done.stdout.splitlines()


async def refused(code: ExitCode, words: str, *arguments: str, stdin: bytes = b"") -> None:
    done = await consumerd(*arguments, stdin=stdin)
    assert (done.returncode, done.stdout) == (code, b""), (arguments, done)
    assert words in done.stderr.decode(), done.stderr
    assert b"Traceback" not in done.stderr


async def counts(at: tuple[str, str]) -> list[int]:
    """The number of messages in each partition."""
    consume = ("consume", *at, "--topic", "events", "--exit-at-end")
    found = await asyncio.gather(*(well(*consume, "--partition", str(n)) for n in range(PARTITIONS)))
    return [*map(len, found)]


@pytest.mark.zookeeper
@pytest.mark.parametrize(
    "version", [pytest.param(name, marks=[] if name in EVERYDAY else [pytest.mark.long]) for name in RELEASES]
)
async def test_console_reads_back_the_produced_lines(version: str, kafka: Any, zk_root: str, tmp_path: Path) -> None:
    broker = await kafka(version, config={"auto.create.topics.enable": "false", "message.max.bytes": "100000"})
    release = RELEASES[version]
    at = ("--bootstrap-server", broker.address)
    by_request = release.number >= (0, 10, 1)
    made = ("topics", "create", "--topic", "events", "--partitions", str(PARTITIONS), "--replication-factor", "1")
    await well(*made, *(at if by_request else ("--zookeeper", zk_root)))
    produce, consume = ("produce", *at, "--topic", "events"), ("consume", *at, "--topic", "events", "--exit-at-end")

    # Keys choose the partition, and are there afterwards.
    lines = b"".join(b"%s\t%s\n" % pair for pair in KEYED)
    headers = ("--header", "from=here") if release.number >= (0, 11) else ()
    await well(*produce, "--key-separator", "\\t", "--codec", "gzip", "--batch-bytes", "5000", *headers, stdin=lines)
    wanted = {number: [pair for pair in KEYED if key_partition(pair[0], PARTITIONS) == number] for number in range(3)}
    at_once = (well(*consume, "--partition", str(n), "--key-separator", "\\t") for n in range(PARTITIONS))
    for number, found in enumerate(await asyncio.gather(*at_once)):
        assert found == [b"%s\t%s" % pair for pair in wanted[number]]
    # A daemon's configuration, looked at with these brokers.
    config = tmp_path / "daemon.toml"
    config.write_text(
        '[group]\nid = "g"\ncoordination = "kafka"\ntopics = { events = 1 }\n'
        f'[kafka]\nbootstrap = ["{broker.address}"]\n'
    )
    if release.number >= (0, 9):
        _, *found = await well("check", "-c", str(config), "--online")
        assert found[0].startswith(b"ok      brokers: 1 of 1 can be reached (ids ")
        assert found[1] == b"ok      topics: partitions: events 3"
        assert [line.split(b":")[0] for line in found[2:]] == [
            b"ok      group",
            b"ok      permissions",
            b"ok      memory",
            b"ok      limits",
            b"ok      handler",
        ]
    # The last ones, those from an offset or a time on, in a format of kcat.
    from_end = ("--partition", "1", "--format", r"%p %o %k %s\n", "--from")
    numbered = [b"1 %d %s %s" % (number, *pair) for number, pair in enumerate(wanted[1])]
    assert await well(*consume, *from_end, "-2") == numbered[-2:]
    assert await well(*consume, *from_end, str(len(numbered) - 3)) == numbered[-3:]
    assert await well(*consume, *from_end, str(len(numbered) + 3)) == []
    assert len(await well(*consume, "--from-time", "0")) == len(KEYED)
    if by_request:  # earlier ones know the times of segments only
        assert await well(*consume, "--from-time", "2999-01-01") == []
    await well(*produce, "--acks", "0", "--partition", "1", stdin=b"\nlast")
    found = await well(*consume, "--partition", "1", "--partition", "2", "--json")
    records = [json.loads(line) for line in found]
    assert len(records) == len(wanted[1]) + len(wanted[2]) + 2
    assert [each.get("payload") for each in records if each["partition"] == 1][-2:] == ["", "last"]
    first = next(each for each in records if each["partition"] == 2)
    assert (first["key"], first["broker"], first["offset"]) == (wanted[2][0][0].decode(), None, 0)
    assert ("timestamp" in first) == (release.number >= (0, 10))
    assert first.get("headers") == ([["from", "aGVyZQ=="]] if headers else None)
    everything = [*(value for _, value in KEYED), b"", b"last"]
    assert sorted(await well("consume", *at, "--whitelist", "ev.*", "--exit-at-end")) == sorted(everything)

    # Each impossible request is one sentence. Two of them leave a line behind.
    by_key, small = ("--key-separator", ":"), ("--max-message-bytes", "9")
    await asyncio.gather(
        refused(ExitCode.NOT_FOUND, "topics create --topic nothing", *produce, "--topic", "nothing", stdin=b"x"),
        refused(ExitCode.NOT_FOUND, "topics create --topic nothing", "consume", *at, "--topic", "nothing"),
        refused(ExitCode.NOT_FOUND, "it has 3, numbered from 0", *produce, "--partition", "3"),
        refused(ExitCode.NOT_FOUND, "it has 3, numbered from 0", *consume, "--partition", "3"),
        refused(ExitCode.USAGE, "line 2 has no key separator ':'", *produce, *by_key, stdin=b"a:1\nb\n"),
        refused(ExitCode.USAGE, "line 2 has 200000 bytes", *produce, stdin=b"short\n" + b"x" * 200_000),
        refused(ExitCode.USAGE, "line 1 has 10 bytes", *produce, *small, stdin=b"1234567890\n1"),
    )

    # Groups.
    group = ("--group", "g")
    if version == "0.8.2.2":
        await refused(ExitCode.CONFIG, "omit --group", *consume, *group)
    else:
        everything += [b"1", b"short"]
        assert len(await well(*consume, *group, "--max-messages", "400")) == 400
        assert len(await well(*consume, *group)) == 1004 - 400
        assert await well(*consume, *group) == []
        await well(*produce, stdin=b"one more")
        assert await well(*consume, *group) == [b"one more"]

    # Lines without a key: a batch of one partition, or one partition after the other.
    before = await counts(at)
    await well(*produce, "--linger", "60", stdin=b"x\n" * 300)
    together = await counts(at)
    await well(*produce, "--linger", "60", "--round-robin", stdin=b"x\n" * 300)
    spread = await counts(at)
    assert sorted(after - count for after, count in zip(together, before, strict=True)) == [0, 0, 300]
    assert all(90 <= after - count <= 110 for after, count in zip(spread, together, strict=True))

    # By ZooKeeper, where the brokers are registered.
    if not release.kraft:
        by_zookeeper = ("--zookeeper", zk_root, "--topic", "events")
        await well("produce", *by_zookeeper, "--linger", "0", stdin=b"by ZooKeeper")
        seen = await well("consume", *by_zookeeper, "--group", "old", "--exit-at-end")
        assert len(seen) == (1605 if version == "0.8.2.2" else 1606)
        assert b"by ZooKeeper" in seen
        await refused(ExitCode.USAGE, "--magic is for brokers of Kafka 0.7", "produce", *by_zookeeper, "--magic", "0")
