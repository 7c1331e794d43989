from __future__ import annotations

import json

import pytest

from consumerd.base.errors import NotFoundError
from consumerd.cli.group_report import show_report
from consumerd.operate.admin.snapshot import V07GroupSnapshot, read_v07_snapshot
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.registry.errors import RegistryError


@pytest.fixture
def zookeeper() -> MemoryZooKeeper:
    """A broken group: t/0-1 has no owner, the owner of t/0-2 is not a live member, and u/0-0 has the wrong owner."""
    zookeeper = MemoryZooKeeper()
    zookeeper.put("/brokers/topics/t/0", b"3")
    zookeeper.put("/brokers/topics/u/0", b"1")
    zookeeper.put("/brokers/topics/other/0", b"1")
    zookeeper.put("/consumers/g/ids/g_a", b'{ "t": 1,"u": 1 }')
    zookeeper.put("/consumers/g/ids/g_b", b'{ "u": 1 }')
    zookeeper.put("/consumers/g/owners/t/0-0", b"g_a-0")
    zookeeper.put("/consumers/g/owners/t/0-2", b"g_x-0")
    zookeeper.put("/consumers/g/owners/u/0-0", b"g_b-0")
    zookeeper.put("/consumers/g/owners/old/0-0", b"g_b-0")
    zookeeper.put("/consumers/g/offsets/t/0-0", b"71")
    zookeeper.put("/consumers/g/offsets/t/0-1", b"?")
    return zookeeper


async def look(zookeeper: MemoryZooKeeper) -> V07GroupSnapshot:
    async with zookeeper.session() as zk:
        return await read_v07_snapshot(zk, "g", brokers=False)


PROBLEM = "t/0-1: a committed offset is '?': expected a decimal number from 0 to 9223372036854775807"


async def test_prints_lines_in_a_pipe(zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = await look(zookeeper)
    capsys.readouterr()
    show_report(snapshot, as_json=False)
    assert [line.split("\t") for line in capsys.readouterr().out.splitlines()] == [
        ["member", "g_a", '{ "t": 1,"u": 1 }', "1"],
        ["member", "g_b", '{ "u": 1 }', "2"],
        ["partition", "old/0-0", "g_b-0", "", "no member subscribes"],
        ["partition", "t/0-0", "g_a-0", "71", ""],
        ["partition", "t/0-1", "", "", "unowned, planned: g_a-0"],
        ["partition", "t/0-2", "g_x-0", "", "owner is not a live member, planned: g_a-0"],
        ["partition", "u/0-0", "g_b-0", "", "planned: g_a-0"],
        ["problem", PROBLEM],
    ]


async def test_prints_json(zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = await look(zookeeper)
    capsys.readouterr()
    show_report(snapshot, as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "group": "g",
        "members": {
            "g_a": {"subscription": '{ "t": 1,"u": 1 }', "understood": True},
            "g_b": {"subscription": '{ "u": 1 }', "understood": True},
        },
        "partitions": {
            "old/0-0": {"owner": "g_b-0", "planned": None, "offset": None},
            "t/0-0": {"owner": "g_a-0", "planned": "g_a-0", "offset": 71},
            "t/0-1": {"owner": None, "planned": "g_a-0", "offset": None},
            "t/0-2": {"owner": "g_x-0", "planned": "g_a-0", "offset": None},
            "u/0-0": {"owner": "g_b-0", "planned": "g_a-0", "offset": None},
        },
        "unowned": ["t/0-1"],
        "orphaned": ["t/0-2"],
        "problems": [PROBLEM],
    }


async def test_prints_a_table_on_a_terminal(
    zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    show_report(await look(zookeeper), as_json=False)
    out = capsys.readouterr().out
    assert "group g: 2 members" in out
    assert "5 partitions, 1 unowned" in out


async def test_filter_subscribes_to_all_topics(zookeeper: MemoryZooKeeper) -> None:
    zookeeper.put("/consumers/g/ids/g_c", b"!1!t")
    snapshot = await look(zookeeper)
    assert sorted(snapshot.subscribed) == ["other", "t", "u"]
    assert sorted({each.topic for each in snapshot.wanted()}) == ["other", "t", "u"]
    assert sorted(snapshot.subscriptions()) == ["g_a", "g_b", "g_c"]


async def test_reports_plans_that_cannot_be_made(zookeeper: MemoryZooKeeper) -> None:
    async with zookeeper.session() as zk:
        with pytest.raises(NotFoundError, match="no group 'x'"):
            await read_v07_snapshot(zk, "x", brokers=False)
    zookeeper.put("/consumers/g/ids/g_c", b"{broken")
    snapshot = await look(zookeeper)
    with pytest.raises(RegistryError, match="member g_c"):
        snapshot.subscriptions()
    assert snapshot.view.members["g_c"].subscription is None
    zookeeper.remove("/consumers/g/ids")
    with pytest.raises(NotFoundError, match="no members now"):
        (await look(zookeeper)).subscriptions()


async def test_shows_clients_with_another_rule_as_owners(
    zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    zookeeper.put("/consumers/g/ids/some id", b'{ "t": 1 }', session_id=7)
    zookeeper.put("/consumers/g/owners/t/0-1", b"some id", session_id=7)
    snapshot = await look(zookeeper)
    capsys.readouterr()
    show_report(snapshot, as_json=False)
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert ["member", "some id", '{ "t": 1 }', "1"] in lines
    assert ["partition", "t/0-1", "some id", "", "a client with another assignment rule"] in lines
    assert not any("planned: some id" in line[-1] for line in lines)
