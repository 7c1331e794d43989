"""`consumerd consume`: by name, by whitelist and by blacklist, to the end."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from consumerd.base.errors import ExitCode
from consumerd.demo.processes import BrokerProcess, clean_environment, consumerd_command

pytestmark = pytest.mark.zookeeper


def consumerd(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        consumerd_command(*arguments),
        input=stdin,
        capture_output=True,
        env=clean_environment(),
        timeout=60,
        check=False,
    )


async def test_selects_topics_by_name_or_filter(zk_root: str, tmp_path: Path) -> None:
    settings = {"log.flush.interval": 1}
    async with BrokerProcess(tmp_path, zk_root, settings=settings) as broker:
        for topic in ("red", "blue"):
            done = consumerd("produce", "--broker", broker.address, "--topic", topic, stdin=topic.encode() + b"\n")
            assert done.returncode == 0, done.stderr
        for group, choice, seen in (
            ("a", ("--topic", "red"), b"red\n"),
            ("b", ("--whitelist", "b.*"), b"blue\n"),
            ("c", ("--blacklist", "b.*"), b"red\n"),
        ):
            done = consumerd("consume", "--zookeeper", zk_root, "--group", group, *choice, "--exit-at-end")
            assert (done.returncode, done.stdout) == (0, seen), done.stderr
        decoded = ("consume", "--zookeeper", zk_root, "--topic", "red", "--exit-at-end", "--json", "--decoder")
        done = consumerd(*decoded, "text", "--group", "d")
        assert (done.returncode, json.loads(done.stdout)["value"]) == (0, "red"), done.stderr
        done = consumerd(*decoded, "json", "--group", "e")
        assert (done.returncode, json.loads(done.stdout)["payload"]) == (ExitCode.CHECK_FAILED, "red"), done.stderr
        assert b"1 of the printed messages could not be decoded" in done.stderr


@pytest.mark.parametrize("choice", [(), ("--topic", "a", "--whitelist", "b")])
def test_requires_exactly_one_selection(choice: tuple[str, ...]) -> None:
    done = consumerd("consume", "--zookeeper", "127.0.0.1:1", "--group", "g", *choice)
    assert done.returncode == ExitCode.USAGE
    assert b"exactly one of" in done.stderr
