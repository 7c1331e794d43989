"""verify, doctor, delete and plan --explain, as their users see them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from consumerd.base.errors import ExitCode
from consumerd.testing.memory_broker import MemoryBroker
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from tests.unit.cli.conftest import Command

A, B = 0xA, 0xB


@pytest.fixture(autouse=True)
def broker(memory: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch) -> MemoryBroker:
    """Two members, three partitions of one broker, all as it should be."""
    broker = MemoryBroker()
    monkeypatch.setattr("consumerd.cli.clusters.connector", lambda timeout: broker.connect)
    memory.put("/brokers/ids/0", b"creator:memory:9000")
    memory.put("/brokers/topics/t/0", b"3")
    memory.put("/consumers/g/ids/g_a", b'{ "t": 1 }', session_id=A)
    memory.put("/consumers/g/ids/g_b", b'{ "t": 1 }', session_id=B)
    for number, (owner, session) in enumerate([("g_a", A), ("g_a", A), ("g_b", B)]):
        memory.put(f"/consumers/g/owners/t/0-{number}", f"{owner}-0".encode(), session_id=session)
        memory.put(f"/consumers/g/offsets/t/0-{number}", b"%d" % broker.append("t", number, b"one"))
    return broker


async def test_verify_reports_differences(consumerd: Command, memory: MemoryZooKeeper) -> None:
    done = await consumerd("group", "verify", "--group", "g")
    assert done == (0, "", "")
    memory.remove("/consumers/g/owners/t/0-2")
    done = await consumerd("group", "verify", "--group", "g")
    assert done.code == ExitCode.CHECK_FAILED
    assert done.rows == [["t/0-2", "has no owner; expected owner g_b-0"]]
    assert done.err == "consumerd: group 'g' is not balanced: 1 difference\n"
    done = await consumerd("group", "verify", "--group", "g", "--json")
    assert json.loads(done.out)["differences"] == [{"subject": "t/0-2", "says": "has no owner; expected owner g_b-0"}]
    memory.remove("/consumers/g/ids")
    done = await consumerd("group", "verify", "--group", "g")
    assert done.code == ExitCode.NOT_FOUND


async def test_verify_waits_for_balance(
    consumerd: Command, memory: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.remove("/consumers/g/owners/t/0-2")
    looks = 0
    sleep = asyncio.sleep

    async def claimed_meanwhile(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            memory.put("/consumers/g/owners/t/0-2", b"g_b-0", session_id=B)
        await sleep(0)

    monkeypatch.setattr("consumerd.operate.admin.verification.asyncio.sleep", claimed_meanwhile)
    done = await consumerd("group", "verify", "--group", "g", "--wait", "60")
    assert (done.code, looks) == (0, 2)


async def test_doctor_finds_nothing_in_a_healthy_group(consumerd: Command, memory: MemoryZooKeeper) -> None:
    memory.remove("/consumers/g/offsets")
    before = memory.dump()
    done = await consumerd("group", "doctor", "--group", "g", "--interval", "0.01", "--fix", "--execute")
    assert done == (0, "", "")
    assert memory.dump() == before


async def test_doctor_explains_findings(consumerd: Command, memory: MemoryZooKeeper) -> None:
    memory.remove("/consumers/g/owners/t/0-2")
    before = memory.dump()
    done = await consumerd("group", "doctor", "--group", "g", "--interval", "0.01")
    assert done.code == ExitCode.CHECK_FAILED
    kinds = [row[:3] for row in done.rows]
    assert ["finding", "gave-up", "g_b"] in kinds
    assert ["finding", "unowned", "t/0-2"] in kinds
    assert ["finding", "offset-without-partition", "t/0-0"] not in kinds
    assert all(len(row) == 5 for row in done.rows)
    assert done.err == "consumerd: group 'g' has 2 findings to fix\n"
    document = json.loads((await consumerd("group", "doctor", "--group", "g", "--interval", "0", "--json")).out)
    assert [finding["kind"] for finding in document["findings"]] == ["gave-up", "unowned"]
    assert (document["steps"], document["executed"], document["remaining"]) == ([], False, None)
    assert memory.dump() == before


async def test_doctor_applies_fixes(
    consumerd: Command, memory: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumerd.operate.admin.doctor.SETTLING", 0.05)
    memory.remove("/consumers/g/owners/t/0-2")
    memory.put("/consumers/g/owners/t/0-2", b"g_old-0")
    memory.put("/consumers/g/ids/g_x", b"", session_id=0xD)
    dry = await consumerd("group", "doctor", "--group", "g", "--interval", "0", "--fix")
    assert dry.code == ExitCode.CHECK_FAILED
    assert ["would", "delete /consumers/g/owners/t/0-2"] in dry.rows
    assert ["would", "nudge the group"] in dry.rows
    assert ["not without --force", "delete /consumers/g/ids/g_x (broken-id)"] in dry.rows
    assert "dry run, nothing was changed: add --execute" in dry.err
    assert "/consumers/g/owners/t/0-2" in memory.dump()

    real = await consumerd("group", "doctor", "--group", "g", "--interval", "0", "--fix", "--execute")
    assert ["done", "delete /consumers/g/owners/t/0-2"] in real.rows
    assert "/consumers/g/owners/t/0-2" not in memory.dump()
    assert "/consumers/g/ids/g_x" in memory.dump()
    assert ["still", "broken-id", "g_x"] in [row[:3] for row in real.rows]
    assert "dry run" not in real.err

    memory.put("/consumers/g/owners/t/0-2", b"g_b-0", session_id=B)
    forced = await consumerd("group", "doctor", "--group", "g", "--interval", "0", "--fix", "--execute", "--force")
    assert forced.code == 0
    assert "/consumers/g/ids/g_x" not in memory.dump()
    assert (await consumerd("group", "doctor", "--group", "g", "--execute")).code == ExitCode.USAGE


async def test_doctor_prints_text_on_a_terminal(
    consumerd: Command, memory: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    memory.put("/consumers/g/ids/g_x\u202e", b"?", session_id=0xD)
    done = await consumerd("group", "doctor", "--group", "g", "--interval", "0", "--fix")
    assert "group g: 1 finding\n\nbroken-id: g_x\\u202e\n  The subscription" in done.out
    assert "\n  Remedy: Stop or fix" in done.out
    assert "not without --force: delete /consumers/g/ids/g_x\\u202e" in done.out


async def test_doctor_names_an_outage_first(
    consumerd: Command, memory: MemoryZooKeeper, broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    doctor = ("group", "doctor", "--group", "g", "--interval", "0")
    broker.away = True
    done = await consumerd(*doctor)
    assert (done.code, [row[1:3] for row in done.rows]) == (
        ExitCode.CHECK_FAILED,
        [["no-brokers", "brokers 0"], ["silent-broker", "broker 0"]],
    )
    memory.remove("/brokers")
    memory.remove("/consumers/g/ids")
    memory.remove("/consumers/g/owners")
    done = await consumerd(*doctor)
    assert (done.code, [row[1:3] for row in done.rows]) == (
        ExitCode.CHECK_FAILED,
        [["no-brokers", "/brokers/ids"], ["no-members", "g"]],
    )
    assert "No broker is registered in ZooKeeper" in done.rows[0][3]


async def test_doctor_shows_equal_findings_once_on_a_terminal(
    consumerd: Command, memory: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        memory.put(f"/consumers/g/offsets/t/7-{number}", b"%d" % (5 + number))
    memory.put("/consumers/g/offsets/t/8-0", b"5")
    doctor = ("group", "doctor", "--group", "g", "--interval", "0")
    assert [row[2] for row in (await consumerd(*doctor)).rows] == [*(f"t/7-{number}" for number in range(8)), "t/8-0"]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    done = await consumerd(*doctor)
    assert (
        "\noffset-without-partition: t/7-0, t/7-1, t/7-2, t/7-3, t/7-4, t/7-5 and 2 more (8) (notice)\n"
        "  t/7-0: Offset 5 is committed, but broker 7 is not registered.\n  Remedy: Keep it if"
    ) in done.out
    assert "\noffset-without-partition: t/8-0 (notice)\n  Offset 5 is committed, but broker 8" in done.out
    assert done.out.count("Remedy:") == 2


async def test_deletes_a_dead_group(
    consumerd: Command, memory: MemoryZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = await consumerd("group", "delete", "--group", "g", "--execute")
    assert done.code == ExitCode.REFUSED
    assert "group 'g' is alive" in done.err
    assert list(tmp_path.iterdir()) == []
    memory.end(A)
    memory.end(B)
    before = memory.dump()
    dry = await consumerd("group", "delete", "--group", "g")
    assert dry.code == 0
    assert ["/consumers/g/offsets/t/0-1"] in dry.rows
    assert "dry run, nothing was deleted" in dry.err
    assert memory.dump() == before
    backup = tmp_path / "g.json"
    done = await consumerd("group", "delete", "--group", "g", "--execute", "--backup", str(backup), "--json")
    assert done.code == 0
    document = json.loads(done.out)
    assert (document["executed"], document["backup"]) == (True, str(backup))
    assert not any(path.startswith("/consumers/g") for path in memory.dump())
    done = await consumerd("offsets", "import", str(backup), "--execute", "--backup", str(tmp_path / "b.json"))
    assert done.code == 0
    assert {path: data for path, data in memory.dump().items() if data} == {
        path: data for path, data in before.items() if data
    }


async def test_plan_explains_the_rule(consumerd: Command) -> None:
    done = await consumerd("group", "plan", "--group", "g", "--explain")
    assert done.rows == [
        ["topic", "t", "3", "2", "1", "1", "0-0 0-1 0-2"],
        ["stream", "t", "g_a-0", "2", "0-0 0-1"],
        ["stream", "t", "g_b-0", "1", "0-2"],
    ]
    done = await consumerd("group", "plan", "--group", "g", "--explain", "--json")
    assert json.loads(done.out) == {
        "t": {
            "partitions": ["0-0", "0-1", "0-2"],
            "q": 1,
            "r": 1,
            "streams": [
                {"stream": "g_a-0", "partitions": ["0-0", "0-1"]},
                {"stream": "g_b-0", "partitions": ["0-2"]},
            ],
        }
    }
