"""The disk of a broker in an object store: each command that reads archives finds in it what is on the disk."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.demo.processes import clean_environment, consumerd_command, format_toml
from tests.interop.test_restore import content, produce
from tests.support.archives import batch, write_segment
from tests.support.s3 import client_of, object_store

pytest.importorskip("s3fs", reason="s3fs is not installed")
pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]
COMMANDS = {
    "ls": ("log", "ls", "--json"),
    "dump": ("log", "dump", "--json", "--isolation", "read_committed"),
    "verify": ("log", "verify", "--json", "--workers", "2"),
    "offsets": ("log", "offsets", "--json"),
    "transactions": ("log", "transactions", "--json"),
}
#: Of the transactions, two times the partitions each, one was aborted.
MESSAGES, PARTITIONS = 40, 2
COMMITTED = MESSAGES + 2 * 2 * PARTITIONS


async def called(options: Mapping[str, str], *arguments: str, code: ExitCode = ExitCode.OK) -> str:
    """What a command prints that uses the store: its errors where it finds nothing."""
    environment = clean_environment() | {name.upper(): value for name, value in options.items()}
    command = consumerd_command(*arguments)
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, env=environment, timeout=90)
    assert done.returncode == code, done
    return (done.stderr if code is ExitCode.NOT_FOUND else done.stdout).decode()


async def stored(kafka: Any, cluster_client: Any) -> Path:
    """The disk of a broker with messages, transactions and a group."""
    broker = await kafka("3.9.1", partitions=PARTITIONS)
    async with cluster_client(broker) as client:
        await produce(client, PARTITIONS)
    await called({}, "offsets", "set", "--bootstrap-server", broker.address, "--group", "g", "--execute", "events/0=7")
    await broker.stop()
    return Path(broker.log_directory)


def upload(disk: Path, options: Mapping[str, str], bucket: str) -> None:
    client = client_of(options)
    for path in disk.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), bucket, f"disk/{path.relative_to(disk)}")


def exported(folder: Path, disk: str) -> dict[str, str]:
    """The rows by the name of their file, without the place of their source."""
    found = folder.rglob("*.ndjson")
    return {str(file.relative_to(folder)): file.read_text().replace(disk, "DISK") for file in found}


async def test_export_reads_the_longest_copy_in_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for disk, values in (("1", [b"a"]), ("2", [b"a", b"b"])):
        write_segment(tmp_path / "disks" / disk, "events-0", 0, *(batch(at, each) for at, each in enumerate(values)))
    with object_store("old") as options:
        await asyncio.to_thread(upload, tmp_path / "disks", options, "old")
        await called(options, "log", "export", "-o", "out", "s3://old/disk", code=ExitCode.CHECK_FAILED)
        missing = await called(options, "log", "export", "-o", "out", "s3://other/disk", code=ExitCode.NOT_FOUND)
    assert missing == "consumerd: s3://other/disk does not exist\n"
    assert [text.count("\n") for text in exported(tmp_path / "out", "").values()] == [2]


@pytest.mark.long
async def test_commands_find_in_a_store_what_is_on_the_disk(
    kafka: Any, cluster_client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where `offsets set` and exports leave files
    disk, url = await stored(kafka, cluster_client), "s3://old/disk"
    with object_store("old") as options:
        await asyncio.to_thread(upload, disk, options, "old")
        for name, command in COMMANDS.items():
            shown, expected = await asyncio.gather(called(options, *command, url), called({}, *command, str(disk)))
            assert shown.replace(url, "DISK") == expected.replace(str(disk), "DISK"), name
        export = ("log", "export", "--isolation", "read_committed", "-o")
        await asyncio.gather(called(options, *export, "there", url), called({}, *export, "here", str(disk)))
        rows = exported(tmp_path / "there", url)
        assert rows == exported(tmp_path / "here", str(disk))
        assert sum(text.count("\n") for name, text in rows.items() if name.startswith("events/")) == COMMITTED

        source = {"path": url, "subscribe": "events"}
        pipeline = {"root": str(tmp_path / "lake"), "pipelines": {"events": {"source": source}}}
        (tmp_path / "lake.toml").write_text(format_toml({"spark": pipeline}))
        aborted = 2 * PARTITIONS
        assert f"rows\t{COMMITTED + aborted}\n" in await called(options, "lake", "land", "-c", "lake.toml")

        new = await kafka("3.9.1", partitions=PARTITIONS)
        replay = ("log", "export", "--to-bootstrap-server", new.address, "--verify", url)
        await called(options, *replay)
        await called(options, "log", "offsets", "--to-bootstrap-server", new.address, "--execute", "--verify", url)
        async with cluster_client(new) as client:
            found = await content(client, PARTITIONS)
        assert sum(map(len, found)) == COMMITTED
