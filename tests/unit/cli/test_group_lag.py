from __future__ import annotations

import json

import click
import pytest
import pytest_asyncio

from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.cli.group_lag import CLEAR
from consumerd.cli.session import connector
from consumerd.demo.ports import free_port
from consumerd.operate.admin.group_source import V07Groups
from consumerd.operate.admin.lag import GroupLag, read_lags
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.v07 import Codec
from tests.unit.cli.conftest import Command
from tests.unit.conftest import Cluster

T0, T1 = TopicPartition("t", 0, 0), TopicPartition("t", 0, 1)


@pytest_asyncio.fixture(autouse=True)
async def group(memory: MemoryZooKeeper, cluster: Cluster) -> None:
    """Broker 0 with 90 and 30 bytes of t, broker 1 registered but dead; one member, offsets here and there."""
    broker = await cluster.start(0)
    await cluster.fill(T0, ([b"x" * 20] * 3, Codec.NONE))
    await cluster.fill(T1, ([b"x" * 20], Codec.NONE))
    memory.put("/brokers/ids/0", f"vm-1:127.0.0.1:{broker.port}".encode())
    memory.put("/brokers/ids/1", f"vm-1:127.0.0.1:{free_port()}".encode())
    memory.put("/brokers/topics/t/0", b"2")
    memory.put("/brokers/topics/t/1", b"1")
    memory.put("/brokers/topics/unread/0", b"1")
    memory.put("/consumers/g/ids/g_a", b'{ "t": 1 }')
    memory.put("/consumers/g/owners/t/0-0", b"g_a-0")
    memory.put("/consumers/g/offsets/t/0-0", b"30")
    memory.put("/consumers/g/offsets/t/1-0", b"5")
    memory.put("/consumers/g/offsets/old/0-0", b"7")


async def test_prints_lag_in_a_pipe(consumerd: Command) -> None:
    done = await consumerd("group", "lag", "--group", "g")
    assert done.code == ExitCode.CHECK_FAILED
    assert "the lag of group 'g' is incomplete: that of 1 partition is unknown (t/1-0: cannot connect" in done.err
    *partitions, total = done.rows
    unreachable = partitions.pop()
    assert partitions == [
        ["partition", "old/0-0", "", "7", "", "", "broker 0 has not registered the topic"],
        ["partition", "t/0-0", "g_a-0", "30", "90", "60", ""],
        ["partition", "t/0-1", "", "", "30", "30", "no committed offset: all of the log"],
    ]
    assert unreachable[:6] == ["partition", "t/1-0", "", "5", "", ""]
    assert "cannot connect to broker 127.0.0.1" in unreachable[6]
    assert total == ["total", "", "2"]


async def test_prints_lag_as_json(consumerd: Command, memory: MemoryZooKeeper) -> None:
    memory.put("/consumers/g/offsets/t/0-1", b"31")
    done = await consumerd("group", "lag", "--group", "g", "--topic", "t", "--json")
    document = json.loads(done.out)
    assert (document["unit"], document["total"], document["unknown"]) == ("bytes", None, ["t/1-0"])
    assert document["partitions"]["t/0-0"] == {
        "owner": "g_a-0", "committed": 30, "earliest": 0, "end": 90, "lag": 60, "lag_seconds": None, "remark": None,
    }  # fmt: skip
    assert document["partitions"]["t/0-1"]["remark"] == "committed 1 bytes beyond the end"
    assert set(document["partitions"]) == {"t/0-0", "t/0-1", "t/1-0"}


async def test_a_topic_that_the_group_does_not_have_has_no_lag_of_zero(consumerd: Command) -> None:
    for more in ([], ["--json"], ["--watch", "0.05"]):
        done = await consumerd("group", "lag", "--group", "g", "--topic", "t", "--topic", "nosuch", *more)
        assert (done.code, done.out) == (ExitCode.NOT_FOUND, "")
        assert "group 'g' has no partitions of the topics nosuch" in done.err


async def test_watch_repeats_with_rates(consumerd: Command, memory: MemoryZooKeeper) -> None:
    done = await consumerd("group", "lag", "--group", "g", "--watch", "0.05", "--count", "3", "--topic", "t")
    speeds = [row[7:9] for row in done.rows if row[:2] == ["partition", "t/0-0"]]
    assert speeds == [["", ""], ["0", "0"], ["0", "0"]]
    assert [row[0] for row in done.rows].count("total") == 3
    done = await consumerd("group", "lag", "--group", "g", "--watch", "0.05", "--count", "2", "--json")
    assert [json.loads(line)["total"] for line in done.out.splitlines()] == [None, None]


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print to a terminal of 80 columns and 5 lines from now on."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "5")


async def test_terminal_shows_topics_by_lag(
    consumerd: Command, memory: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    memory.put("/consumers/g/offsets/unread/0-0", b"0")
    done = await consumerd("group", "lag", "--group", "g")
    title, head, *rows = click.unstyle(done.out).splitlines()[:5]
    assert title == "group g: at least 90 bytes of lag in 3 partitions, 2 unknown"
    assert head.split() == ["topic", "partitions", "behind", "lag", "(bytes)", "remark"]
    assert [row.split()[:3] for row in rows] == [["t", "3", "3"], ["old", "1", "1"], ["unread", "1", "0"]]
    assert all(len(row) <= 80 for row in rows)


@pytest.mark.parametrize("asked", [("--partitions",), ("--topic", "t")])
async def test_terminal_shows_partitions_on_request(
    consumerd: Command, asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    done = await consumerd("group", "lag", "--group", "g", *asked)
    rows = [line.split() for line in click.unstyle(done.out).splitlines()[2:]]
    assert [row[0] for row in rows if row[0].startswith("t/")] == ["t/1-0", "t/0-0", "t/0-1"]
    assert rows[1][1:5] == ["g_a-0", "30", "90", "60"]


async def test_shows_only_what_is_behind(consumerd: Command, memory: MemoryZooKeeper) -> None:
    memory.put("/consumers/g/offsets/t/0-0", b"90")
    done = await consumerd("group", "lag", "--group", "g", "--behind", "--topic", "t")
    assert [row[1] for row in done.rows] == ["t/0-1", "t/1-0", ""]
    document = json.loads((await consumerd("group", "lag", "--group", "g", "--behind", "--topic", "t", "--json")).out)
    assert set(document["partitions"]) == {"t/0-1", "t/1-0"}


async def test_watch_keeps_the_head_on_the_screen(consumerd: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch)
    watch = ("--watch", "0.05", "--count", "1", "--partitions")
    done = await consumerd("group", "lag", "--group", "g", *watch)
    clear, *lines = done.out.replace(CLEAR, f"{CLEAR}\n").splitlines()
    assert clear == CLEAR
    assert lines[0].startswith("group g: at least")
    assert (len(lines), lines[-1]) == (4, "... and 4 more lines")


async def test_rejects_an_unknown_group(consumerd: Command) -> None:
    done = await consumerd("group", "lag", "--group", "nobody")
    assert (done.code, done.out) == (ExitCode.NOT_FOUND, "")
    done = await consumerd("group", "lag")
    assert done.code == ExitCode.USAGE
    assert "give --group" in done.err
    for name in ("", "a/b", ".."):  # an empty one is a variable that a script forgot to set
        done = await consumerd("group", "lag", "--group", name)
        assert (done.code, done.out) == (ExitCode.USAGE, "")
        assert "must not be empty" in done.err or f"{name!r}" in done.err


async def test_describes_topics(consumerd: Command) -> None:
    done = await consumerd("topics", "describe", "--topic", "t")
    assert (done.code, done.err) == (0, "")
    assert [[row[0], *row[2:5]] for row in done.rows] == [
        ["t/0-0", "0", "90", "90"],
        ["t/0-1", "0", "30", "30"],
        ["t/1-0", "", "", ""],
    ]
    assert "cannot connect" in done.rows[2][5]
    document = json.loads((await consumerd("topics", "describe", "--json")).out)
    assert set(document["topics"]) == {"t", "unread"}
    assert document["topics"]["t"]["bytes"] is None  # that of t/1-0 is not known
    assert document["topics"]["unread"]["bytes"] == 0  # its log is empty
    assert document["topics"]["t"]["partitions"]["0-1"] == {"earliest": 0, "latest": 30, "bytes": 30, "remark": None}
    assert set(document["brokers"]) == {"0", "1"}
    done = await consumerd("topics", "describe", "--topic", "nope")
    assert done.code == ExitCode.NOT_FOUND
    assert "there is no topic 'nope'" in done.err


async def test_takes_zookeeper_and_group_from_the_configuration(
    memory: MemoryZooKeeper, consumerd: Command, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio
    from pathlib import Path

    from consumerd.cli import clusters
    from consumerd.cli.main import run

    path = Path(str(tmp_path)) / "c.toml"
    path.write_text(
        '[group]\nid = "g"\ntopics = { t = 1 }\n[zookeeper]\nconnect = "zk1:2181/k"\nauth = ["digest:u:p"]\n'
    )
    asked: list[tuple[str, object]] = []

    def spy(zookeeper: str, timeout: float, section: object) -> object:
        asked.append((zookeeper, section))
        return memory.session()

    monkeypatch.setattr(clusters, "open_session", spy)
    memory.remove("/brokers/topics/t/1")
    memory.remove("/consumers/g/offsets/t/1-0")
    assert await asyncio.to_thread(run, ["group", "lag", "-c", str(path)]) == 0
    assert await asyncio.to_thread(run, ["group", "lag"]) == ExitCode.USAGE
    ((address, section),) = asked
    assert address == "zk1:2181/k"
    assert [each.get_secret_value() for each in section.auth] == ["digest:u:p"]  # type: ignore[attr-defined]


async def test_adds_up_what_it_could_read_of_all_partitions(consumerd: Command, memory: MemoryZooKeeper) -> None:
    memory.remove("/brokers/topics/t/1")
    memory.remove("/consumers/g/offsets/t/1-0")
    done = await consumerd("group", "lag", "--group", "g")
    assert (done.code, done.err) == (0, "")
    assert done.rows[-1] == ["total", "90", "1"]  # broker 0 has no topic `old`, so there is nothing to read


async def test_counts_partitions_of_a_stopped_broker_as_not_known(consumerd: Command, memory: MemoryZooKeeper) -> None:
    memory.remove("/brokers/topics/t/1")  # both are ephemeral in 0.7
    memory.remove("/brokers/ids/1")
    done = await consumerd("group", "lag", "--group", "g")
    assert done.code == ExitCode.CHECK_FAILED
    assert ["partition", "t/1-0", "", "5", "", "", "broker 1 is not registered"] in done.rows
    assert done.rows[-1] == ["total", "", "2"]


@pytest.mark.parametrize("name", ["0-0", "0-7"])  # one that the member wants, and one that nobody wants
async def test_does_not_take_an_unreadable_offset_for_none(
    consumerd: Command, memory: MemoryZooKeeper, name: str
) -> None:
    memory.remove("/brokers/topics/t/1")
    memory.remove("/consumers/g/offsets/t/1-0")
    memory.put(f"/consumers/g/offsets/t/{name}", b"many")
    done = await consumerd("group", "lag", "--group", "g", "--topic", "t")
    assert done.code == ExitCode.CHECK_FAILED
    (row,) = (row for row in done.rows if row[1] == f"t/{name}")
    assert (row[3], row[5]) == ("", "")
    assert "a committed offset is 'many'" in row[6]
    assert done.rows[-1] == ["total", "", "1"]
    document = json.loads((await consumerd("group", "lag", "--group", "g", "--json")).out)
    assert document["total"] is None
    assert document["partitions"][f"t/{name}"]["lag"] is None


async def test_lag_of_several_groups_has_an_error_in_place_of_one_that_cannot_be_read(memory: MemoryZooKeeper) -> None:
    memory.put("/consumers/h/offsets/t/0-0", b"60")
    memory.put("/consumers/bad/offsets/t/0", b"1")  # of the other dialect
    async with memory.session() as session:
        found = await read_lags(V07Groups(session, connector(5.0)), ["g", "h", "bad", "gone"])
    assert set(found) == {"g", "h", "bad"}
    lags = {
        name: [(str(each.partition), each.committed, each.lag) for each in group.partitions]
        for name, group in found.items()
        if isinstance(group, GroupLag)
    }
    assert lags["h"] == [("t/0-0", 60, 30)]
    assert ("t/0-0", 30, 60) in lags["g"]
    assert ("t/1-0", 5, None) in lags["g"]
