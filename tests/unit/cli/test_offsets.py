from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.cli.offsets_change import How
from consumerd.cli.offsets_input import parse_duration
from consumerd.net.zk.errors import NoAuth
from consumerd.operate.admin.changes import OffsetChange
from consumerd.operate.admin.group_source import GroupSource
from consumerd.operate.admin.offset_plans import OffsetMove, OffsetPlan
from consumerd.testing.memory_zookeeper import MemorySession, MemoryZooKeeper
from consumerd.wire.v07 import Codec
from tests.unit.cli.conftest import Command
from tests.unit.conftest import Cluster

A = 0xA


@pytest_asyncio.fixture(autouse=True)
async def group(memory: MemoryZooKeeper, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped group; broker 0 has messages of t at 0, 30, 60 in partition 0, none in 1; broker 1 is unavailable."""
    broker = await cluster.start(0)
    await cluster.fill(TopicPartition("t", 0, 0), ([b"x" * 20] * 3, Codec.NONE))
    memory.put("/brokers/ids/0", f"vm-1:127.0.0.1:{broker.port}".encode())
    memory.put("/brokers/topics/t/0", b"2")
    memory.put("/consumers/g/offsets/t/0-0", b"30")
    memory.put("/consumers/g/offsets/t/1-0", b"5")
    memory.make("/consumers/g/ids")
    memory.make("/consumers/g/owners/t")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def offsets(memory: MemoryZooKeeper) -> dict[str, bytes | None]:
    return {
        path.partition("/offsets/")[2]: data for path, data in memory.dump().items() if data and "/offsets/" in path
    }


async def test_gets_offsets(consumerd: Command, memory: MemoryZooKeeper) -> None:
    memory.put("/consumers/g/offsets/u/0-0", b"?")
    done = await consumerd("offsets", "get", "--group", "g")
    assert (done.code, done.err) == (0, "")
    assert [row[:2] for row in done.rows] == [["t/0-0", "30"], ["t/1-0", "5"], ["u/0-0", ""]]
    assert done.rows[0][2].endswith("Z")
    assert "expected a decimal number" in done.rows[2][3]
    document = json.loads((await consumerd("offsets", "get", "--group", "g", "--json")).out)
    assert document["offsets"]["t/0-0"]["offset"] == 30
    assert set(document["problems"]) == {"u/0-0"}
    done = await consumerd("offsets", "get", "--group", "g", "--topic", "t", "--partition", "1-0")
    assert [row[:2] for row in done.rows] == [["t/1-0", "5"]]
    assert (await consumerd("offsets", "get", "--group", "g", "--partition", "1")).rows == []
    assert (await consumerd("offsets", "get", "--group", "g", "--partition", "1-")).code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["get", "--topic", "nosuch"], "group 'g' has no offsets that match --topic and --partition"),
        (["get", "--partition", "9-9"], "group 'g' has no offsets that match --topic and --partition"),
        (["export", "--topic", "nosuch"], "there are no offsets of the topics nosuch"),
    ],
)
async def test_selecting_no_offset_is_an_error(consumerd: Command, arguments: list[str], words: str) -> None:
    done = await consumerd("offsets", *arguments, "--group", "g")
    assert (done.code, done.out) == (ExitCode.NOT_FOUND, "")
    assert words in done.err


async def test_names_both_kinds_of_partitions_for_a_wrong_one(consumerd: Command) -> None:
    done = await consumerd("offsets", "get", "--group", "g", "--partition", "t/9")
    assert done.code == ExitCode.USAGE
    assert "'t/9' is not the name of a partition, such as 0-3 (0.7) or 3 (0.8 and later)" in done.err


async def test_dry_run_changes_nothing(consumerd: Command, memory: MemoryZooKeeper, tmp_path: Path) -> None:
    before = memory.dump()
    done = await consumerd("offsets", "set", "--group", "g", "t/0-0=60", "t/0-1=0", "t/1-0=5")
    assert done.code == 0
    assert done.rows == [
        ["g", "t/0-0", "30", "60", ""],
        ["g", "t/0-1", "none", "0", ""],
        ["g", "t/1-0", "5", "5", "stays"],
    ]
    assert done.err == "consumerd: dry run, nothing was changed: add --execute to do it\n"
    assert memory.dump() == before
    assert list((tmp_path / "work").iterdir()) == []


async def test_writes_a_backup_that_restores(consumerd: Command, memory: MemoryZooKeeper, tmp_path: Path) -> None:
    before = offsets(memory)
    done = await consumerd("offsets", "set", "--group", "g", "t/0-0=60", "t/0-1=0", "--execute", "--json")
    assert done.code == 0
    document = json.loads(done.out)
    assert (document["executed"], document["refusals"]) == (True, [])
    assert offsets(memory) == {"t/0-0": b"60", "t/0-1": b"0", "t/1-0": b"5"}
    (backup,) = (tmp_path / "work").iterdir()
    assert backup.name == document["backup"]
    assert backup.name.startswith("offsets-g-")
    assert f"the previous offsets are in {backup.name}" in done.err
    assert json.loads(backup.read_text())["groups"] == {"g": {"t": {"0-0": 30, "0-1": None}}}
    done = await consumerd("offsets", "import", backup.name, "--execute")
    assert done.code == 0
    assert offsets(memory) == before


@pytest.mark.parametrize(
    ("arguments", "after"),
    [
        (["--to", "earliest"], ["0", "0"]),
        (["--to", "latest"], ["90", "0"]),
        (["--to", "60", "--partition", "0-0"], ["60"]),
        (["--to", "-1", "--partition", "0-0"], ["0"]),
        (["--to", "+30", "--partition", "0-0"], ["60"]),
        (["--at-time", "1970-01-02", "--partition", "0-0"], ["0"]),
        (["--at-time", "2999-01-01T00:00:00+01:00"], ["90", "0"]),
        (["--at-time", "9999999999999", "--partition", "0-1"], ["0"]),
        (["--by-duration", "P9999DT1H", "--partition", "0-0"], ["0"]),
        (["--to", "9999d", "--partition", "0-0"], ["0"]),
        (["--shift-by", "-1", "--partition", "0-0"], ["0"]),
        (["--shift-by", "30", "--partition", "0-0"], ["60"]),
        (["--to-current"], ["30", "0"]),
    ],
)
async def test_resets_offsets(
    consumerd: Command, memory: MemoryZooKeeper, arguments: list[str], after: list[str]
) -> None:
    memory.remove("/consumers/g/offsets/t/1-0")
    done = await consumerd("offsets", "reset", "--group", "g", *arguments, "--execute")
    assert done.code == 0
    assert [row[3] for row in done.rows] == after
    for name, value in zip(["t/0-0", "t/0-1"] if len(after) == 2 else [done.rows[0][1]], after, strict=True):
        assert offsets(memory)[name] == value.encode()


async def test_reset_to_current_limits_an_offset_to_the_log(consumerd: Command, memory: MemoryZooKeeper) -> None:
    memory.put("/consumers/g/offsets/t/0-0", b"1000")
    done = await consumerd("offsets", "reset", "--group", "g", "--partition", "0-0", "--to-current", "--execute")
    assert done.code == 0
    assert offsets(memory)["t/0-0"] == b"90"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give exactly one of --to, --at-time, --by-duration, --shift-by, --to-current"),
        (["--to", "latest", "--shift-by", "1"], "give exactly one of"),
        (["--by-duration", "P"], "must be a duration"),
        (["--by-duration", "tomorrow"], "must be a duration"),
        (["--shift-by", "99999999999999999999"], "--shift-by"),
    ],
)
async def test_reset_takes_one_target(consumerd: Command, arguments: list[str], words: str) -> None:
    done = await consumerd("offsets", "reset", "--group", "g", *arguments)
    assert done.code == ExitCode.USAGE
    assert words in " ".join(done.err.split())


async def test_duration_counts_back_from_now() -> None:
    for text, seconds in (("90m", 5400), ("PT90M", 5400), ("1d12h", 129_600), ("P1DT1S", 86_401)):
        assert parse_duration(text, 1_000_000.0).value == (1_000_000 - seconds) * 1000
    assert parse_duration("99999d", 1_000_000.0).value == 0


async def test_reset_fails_for_partitions_of_an_unreachable_broker(consumerd: Command, memory: MemoryZooKeeper) -> None:
    before = memory.dump()
    done = await consumerd("offsets", "reset", "--group", "g", "--to", "latest", "--execute")
    assert done.code == ExitCode.REFUSED
    assert done.rows[2] == ["g", "t/1-0", "5", "?", "broker 1 is not registered"]
    assert "refused: t/1-0: broker 1 is not registered; nothing was changed" in done.err
    assert memory.dump() == before
    done = await consumerd("offsets", "reset", "--group", "g", "--to", "latest", "--execute", "--force")
    assert done.code == 0
    assert offsets(memory) == {"t/0-0": b"90", "t/0-1": b"0", "t/1-0": b"5"}


@pytest.mark.parametrize(
    ("assignment", "reason"),
    [
        ("t/0-0=61", "inside a message that begins at 60"),
        ("t/0-0=91", "the broker has 0 to 90"),
        ("t/0-2=0", "broker 0 has no such partition"),
    ],
)
async def test_refuses_unless_forced(
    consumerd: Command, memory: MemoryZooKeeper, assignment: str, reason: str, tmp_path: Path
) -> None:
    before = memory.dump()
    done = await consumerd("offsets", "set", "--group", "g", assignment, "--execute")
    assert done.code == ExitCode.REFUSED
    assert reason in done.err
    assert reason in done.rows[0][4]
    assert memory.dump() == before
    assert list((tmp_path / "work").iterdir()) == []
    done = await consumerd("offsets", "set", "--group", "g", assignment, "--execute", "--force")
    assert done.code == 0
    name, _, offset = assignment.partition("=")
    assert offsets(memory)[name] == offset.encode()


async def test_refuses_while_members_are_alive(consumerd: Command, memory: MemoryZooKeeper) -> None:
    memory.put("/consumers/g/ids/g_a", b"*1*t", session_id=A)
    memory.put("/consumers/g/owners/t/0-0", b"g_a-0", session_id=A)
    done = await consumerd("offsets", "reset", "--group", "g", "--topic", "t", "--partition", "0-0", "--to", "latest")
    assert done.code == ExitCode.REFUSED
    assert "refused: member g_a is alive and subscribes (1 more reasons); nothing was changed" in done.err
    document = json.loads((await consumerd("offsets", "set", "--group", "g", "t/0-0=0", "--execute", "--json")).out)
    assert document["refusals"] == ["member g_a is alive and subscribes", "t/0-0 is owned by g_a-0"]
    assert (document["executed"], document["backup"]) == (False, None)
    assert offsets(memory)["t/0-0"] == b"30"
    done = await consumerd("offsets", "set", "--group", "g", "t/0-0=30")
    assert done.code == 0  # nothing would change, so nothing is in the way
    done = await consumerd("offsets", "set", "--group", "g", "t/0-0=0", "--execute", "--force")
    assert done.code == 0
    assert offsets(memory)["t/0-0"] == b"0"


async def test_writes_nothing_without_a_backup(consumerd: Command, memory: MemoryZooKeeper, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("precious")
    before = memory.dump()
    done = await consumerd("offsets", "set", "--group", "g", "t/0-0=0", "--execute", "--backup", str(taken))
    assert done.code == ExitCode.CONFIG
    assert "already exists" in done.err
    assert memory.dump() == before
    assert taken.read_text() == "precious"


async def test_exports_and_imports(
    consumerd: Command, memory: MemoryZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.put("/consumers/h/offsets/t/0-0", b"7")
    memory.put("/consumers/h/offsets/t/0-1", b"x")
    done = await consumerd("offsets", "export")
    assert done.out == ("/consumers/g/offsets/t/0-0:30\n/consumers/g/offsets/t/1-0:5\n/consumers/h/offsets/t/0-0:7\n")
    assert "left out: t/0-1 of group h: a committed offset is 'x'" in done.err
    path = tmp_path / "out.json"
    done = await consumerd("offsets", "export", "--group", "g", "--format", "json", "-o", str(path))
    assert (done.code, done.out) == (0, "")
    assert json.loads(path.read_text()) == {"groups": {"g": {"t": {"0-0": 30, "1-0": 5}}}}
    assert (await consumerd("offsets", "export", "--group", "g", "-o", str(path))).code == ExitCode.CONFIG
    assert (await consumerd("offsets", "export", "--group", "nobody")).code == ExitCode.NOT_FOUND

    done = await consumerd("offsets", "import", str(path), "--rename", "g=new", "--execute", "--json")
    assert done.code == 0
    changes = {change["partition"]: change for change in json.loads(done.out)["changes"]}
    assert (changes["t/0-0"]["group"], changes["t/0-0"]["before"], changes["t/0-0"]["after"]) == ("new", None, 30)
    assert changes["t/1-0"]["note"] == "not checked: broker 1 is not registered"
    assert memory.dump()["/consumers/new/offsets/t/0-0"] == b"30"

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"/consumers/h/offsets/t/0-1:0\n")))
    done = await consumerd("offsets", "import", "-", "--execute")
    assert done.rows == [["h", "t/0-1", "none", "0", ""]]
    assert memory.dump()["/consumers/h/offsets/t/0-1"] == b"0"


async def test_imports_every_format(consumerd: Command, tmp_path: Path) -> None:
    path = tmp_path / "all.txt"
    path.write_text("/consumers/g/offsets/t/0-0:60\n/consumers/g/offsets/u/0-0:1\n/consumers/h/offsets/t/0-0:0\n")
    done = await consumerd("offsets", "import", str(path), "--group", "g", "--topic", "t")
    assert [row[:2] for row in done.rows] == [["g", "t/0-0"]]
    for arguments, code in {
        ("--group", "x"): ExitCode.NOT_FOUND,
        ("--topic", "x"): ExitCode.NOT_FOUND,
        ("--rename", "x=y"): ExitCode.USAGE,
        ("--rename", "g"): ExitCode.USAGE,
        ("--rename", "g=h"): ExitCode.USAGE,
    }.items():
        assert (await consumerd("offsets", "import", str(path), *arguments)).code == code


@pytest.mark.parametrize(
    "arguments",
    [
        ["set", "--group", "g", "t/0-0"],
        ["set", "--group", "g", "t=5"],
        ["set", "--group", "g", "t/x=5"],
        ["set", "--group", "g", "t/0-0=-5"],
        ["set", "--group", "g", "t/0-0=1", "t/0-0=2"],
        ["set", "--group", "g"],
        ["set", "t/0-0=1"],
        ["reset", "--group", "g"],
        ["reset", "--group", "g", "--to", "1", "--at-time", "1"],
        ["reset", "--group", "g", "--to", "soon"],
        ["reset", "--group", "g", "--to", "--5"],
        ["reset", "--group", "g", "--at-time", "noon"],
        ["reset", "--group", "g", "--at-time", "1912-01-01"],
    ],
)
async def test_rejects_wrong_command_lines(consumerd: Command, arguments: list[str]) -> None:
    done = await consumerd("offsets", *arguments)
    assert (done.code, done.out) == (ExitCode.USAGE, "")


async def test_reset_requires_an_existing_topic(consumerd: Command, memory: MemoryZooKeeper) -> None:
    assert (await consumerd("offsets", "reset", "--group", "x", "--to", "latest")).code == ExitCode.NOT_FOUND
    assert (await consumerd("offsets", "reset", "--group", "g", "--topic", "x", "--to", "0")).code == ExitCode.NOT_FOUND
    done = await consumerd("offsets", "reset", "--group", "x", "--topic", "t", "--to", "latest", "--execute")
    assert done.code == 0  # a group may be given its start before its first member comes
    assert memory.dump()["/consumers/x/offsets/t/0-0"] == b"90"


async def test_doctor_finds_offsets_inside_messages(consumerd: Command, memory: MemoryZooKeeper) -> None:
    memory.put("/consumers/g/offsets/t/0-0", b"61")
    done = await consumerd("group", "doctor", "--group", "g", "--interval", "0", "--json")
    (found,) = (each for each in json.loads(done.out)["findings"] if each["kind"] == "offset-inside-message")
    assert (found["subject"], found["notice"]) == ("t/0-0", False)
    assert found["says"].startswith("Offset 61 is inside a message that begins at 60, ")
    assert done.code == ExitCode.CHECK_FAILED
    memory.put("/consumers/g/offsets/t/0-0", b"60")
    done = await consumerd("group", "doctor", "--group", "g", "--interval", "0")
    assert "offset-inside-message" not in done.out


@pytest.mark.parametrize("arguments", [["get"], ["export"]])
async def test_reads_no_nodes_but_those_of_the_offsets_that_are_asked_for(
    consumerd: Command, memory: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """An ACL may refuse the others, and a large cluster has many of them."""
    memory.put("/consumers/g/ids/g_a", b'{ "t": 1 }')
    memory.put("/consumers/g/offsets/secret/0-0", b"1")
    read, listed = MemorySession.get, MemorySession.children

    def check(path: str) -> None:
        if path.startswith(
            ("/brokers/topics", "/consumers/g/ids", "/consumers/g/owners", "/consumers/g/offsets/secret")
        ):
            raise NoAuth(f"ZooKeeper denies access to {path}")

    async def get(self: MemorySession, path: str, *, watch: bool = False) -> Any:
        check(path)
        return await read(self, path, watch=watch)

    async def children(self: MemorySession, path: str, *, watch: bool = False) -> list[str]:
        check(path)
        return await listed(self, path, watch=watch)

    monkeypatch.setattr(MemorySession, "get", get)
    monkeypatch.setattr(MemorySession, "children", children)
    done = await consumerd("offsets", *arguments, "--group", "g", "--topic", "t")
    assert (done.code, done.err) == (0, "")
    assert "t/0-0" in done.out
    assert "30" in done.out
    assert (await consumerd("offsets", *arguments, "--group", "g")).code == ExitCode.ZOOKEEPER


async def test_says_of_an_interrupted_write_that_some_offsets_may_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        async def write(self, changes: Sequence[OffsetChange], *, force: bool) -> int:
            raise asyncio.CancelledError

    backup = tmp_path / "before.json"
    how = How(execute=True, force=False, backup=backup, broker_timeout=1.0, as_json=False)
    plan = OffsetPlan([OffsetMove(OffsetChange("g", TopicPartition("t", 0, number), 1, 2, 0)) for number in range(3)])
    with pytest.raises(asyncio.CancelledError):
        await how.write(cast("GroupSource", Interrupted()), plan)
    assert json.loads(backup.read_text())["groups"] == {"g": {"t": {"0-0": 1, "0-1": 1, "0-2": 1}}}
    assert capsys.readouterr().err.splitlines()[1] == (
        "consumerd: the write of 3 offsets was interrupted; some may be written: run the command again for the rest"
    )
