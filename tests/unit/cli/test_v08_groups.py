"""Groups of Kafka 0.8 and later in ZooKeeper, whose brokers are unavailable, in the output of the tools."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from consumerd.base.errors import ExitCode
from consumerd.cli.main import run
from consumerd.group.assignors import java_hash
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from tests.unit.cli.conftest import Command

MEMBER = '{"version":1,"subscription":{"t":%d},"pattern":"static","timestamp":"1"}'
OLD_BROKER = b"vm-1:127.0.0.1:9"
NEW_BROKER = b'{"jmx_port":-1,"timestamp":"1","host":"127.0.0.1","version":%d,"port":1}'
A, B = 0xA, 0xB


@pytest.fixture
def group(memory: MemoryZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two members, eleven partitions, assigned by range; no broker is running."""
    partitions = ",".join(f'"{number}":[0]' for number in range(11))
    memory.put("/brokers/topics/t", b'{"version":1,"partitions":{%s}}' % partitions.encode())
    memory.put(
        "/brokers/topics/t/partitions/0/state",
        b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":0,"isr":[0]}',
    )
    for name, session in (("g_a", A), ("g_b", B)):
        memory.put(f"/consumers/g/ids/{name}", (MEMBER % 1).encode(), session_id=session)
    deal(memory, ["g_a"] * 6 + ["g_b"] * 5)
    memory.put("/consumers/g/offsets/t/2", b"7")
    memory.put("/consumers/g/offsets/t/10", b"5")
    monkeypatch.chdir(tmp_path)


def deal(memory: MemoryZooKeeper, owners: list[str]) -> None:
    memory.remove("/consumers/g/owners")
    for number, owner in enumerate(owners):
        session = A if owner == "g_a" else B
        memory.put(f"/consumers/g/owners/t/{number}", f"{owner}-0".encode(), session_id=session)


async def test_describes_members_and_partitions(consumerd: Command, memory: MemoryZooKeeper, group: None) -> None:
    memory.put("/brokers/ids/0", NEW_BROKER % 1)
    memory.remove("/consumers/g/owners/t/2")
    memory.put("/consumers/g/owners/t/3", b"g_old-0", session_id=0xC)
    memory.put("/consumers/g/ids/g_c", b'{ "t": 1 }', session_id=B)
    done = await consumerd("group", "describe", "--group", "g")
    assert done.code == 0
    assert done.rows[0] == ["member", "g_a", MEMBER % 1, "4", ""]
    partitions = [row[1:] for row in done.rows if row[0] == "partition"]
    assert [row[0] for row in partitions] == [f"t/{number}" for number in range(11)]
    assert partitions[2] == ["t/2", "", "7", "unowned, planned: g_a-0"]
    assert partitions[3] == ["t/3", "g_old-0", "", "owner is not a live member, planned: g_a-0"]
    assert "0.7" in next(row for row in done.rows if row[0] == "problem")[1]
    document = json.loads((await consumerd("group", "describe", "--group", "g", "--json")).out)
    assert (document["coordinator"], document["rule"], document["state"]) == ("zookeeper", None, None)
    assert (document["unowned"], document["orphaned"]) == (["t/2"], ["t/3"])
    assert document["members"]["g_c"]["understood"] is False
    assert document["partitions"]["t/10"] == {"owner": "g_b-0", "planned": "g_b-0", "offset": 5}


async def test_plans_by_the_rule_of_the_current_owners(
    consumerd: Command, memory: MemoryZooKeeper, group: None
) -> None:
    assert await consumerd("group", "verify", "--group", "g") == (0, "", "")
    document = json.loads((await consumerd("group", "describe", "--group", "g", "--json")).out)
    assert document["rule"] == "range"
    planned = json.loads((await consumerd("group", "plan", "--group", "g", "--json")).out)
    assert list(planned.values()) == ["g_a-0"] * 6 + ["g_b-0"] * 5
    # As roundrobin assigns them: the hashes of "[t,0]" to "[t,10]" decide about the order.
    by_hash = sorted(range(11), key=lambda number: java_hash(f"[t,{number}]"))
    deal(memory, ["g_a" if by_hash.index(number) % 2 == 0 else "g_b" for number in range(11)])
    assert await consumerd("group", "verify", "--group", "g") == (0, "", "")
    document = json.loads((await consumerd("group", "describe", "--group", "g", "--json")).out)
    assert document["rule"] == "roundrobin"
    deal(memory, ["g_b"] * 11)
    done = await consumerd("group", "verify", "--group", "g")
    assert done.code == ExitCode.CHECK_FAILED
    assert ["t/0", "owner is g_b-0; expected owner g_a-0"] in done.rows


async def test_refuses_to_plan_a_group_without_a_readable_subscription(
    consumerd: Command, memory: MemoryZooKeeper, group: None
) -> None:
    memory.put("/consumers/g/ids/g_c", b"{", session_id=B)
    done = await consumerd("group", "plan", "--group", "g")
    assert (done.code, "cannot be planned: member g_c" in done.err) == (ExitCode.ZOOKEEPER, True)
    memory.remove("/consumers/g/ids/g_c")
    assert (await consumerd("group", "plan", "--group", "g", "--explain")).code == ExitCode.USAGE
    memory.remove("/consumers/g/ids")
    assert (await consumerd("group", "plan", "--group", "g")).code == ExitCode.NOT_FOUND
    # The names of its offsets still say of which kind it is.
    assert (
        json.loads((await consumerd("group", "describe", "--group", "g", "--json")).out)["coordinator"] == "zookeeper"
    )


async def test_filters_exclude_internal_topics(consumerd: Command, memory: MemoryZooKeeper, group: None) -> None:
    memory.put("/brokers/topics/__consumer_offsets", b'{"version":1,"partitions":{"0":[0]}}')
    memory.put(
        "/consumers/g/ids/g_a",
        (MEMBER % 1).replace('"t"', '".*"').replace("static", "white_list").encode(),
        session_id=A,
    )
    assert await consumerd("group", "verify", "--group", "g") == (0, "", "")


async def test_shows_lag_without_brokers(consumerd: Command, memory: MemoryZooKeeper, group: None) -> None:
    done = await consumerd("group", "lag", "--group", "g")
    assert done.rows[2] == [
        "partition",
        "t/2",
        "g_a-0",
        "7",
        "",
        "",
        "",
        "no broker with a PLAINTEXT listener is registered",
    ]
    assert (done.rows[-1], done.code) == (["total", "", "11"], ExitCode.CHECK_FAILED)
    memory.put("/brokers/ids/0", NEW_BROKER % 1)
    document = json.loads((await consumerd("group", "lag", "--group", "g", "--json")).out)
    assert (document["unit"], document["total"], len(document["unknown"])) == ("messages", None, 11)
    assert "127.0.0.1" in document["partitions"]["t/0"]["remark"]


async def test_changes_offsets_without_brokers(consumerd: Command, memory: MemoryZooKeeper, group: None) -> None:
    got = (await consumerd("offsets", "get", "--group", "g")).rows
    assert [row[:2] for row in got] == [["t/2", "7"], ["t/10", "5"]]
    change = ("offsets", "set", "--group", "g", "t/10=8", "t/2=7")
    done = await consumerd(*change)
    assert (done.code, "member g_a is alive" in done.err) == (ExitCode.REFUSED, True)
    memory.remove("/consumers/g/ids")
    memory.remove("/consumers/g/owners")
    done = await consumerd(*change, "--execute", "--backup", "before.json")
    assert done.rows[0][:4] == ["g", "t/10", "5", "8"]
    assert done.rows[0][4].startswith("not checked: no broker")
    assert memory.dump()["/consumers/g/offsets/t/10"] == b"8"
    done = await consumerd("offsets", "reset", "--group", "g", "--to", "latest")
    assert done.code == ExitCode.REFUSED
    await consumerd("offsets", "import", "before.json", "--execute")
    assert memory.dump()["/consumers/g/offsets/t/10"] == b"5"
    exported = (await consumerd("offsets", "export")).out
    assert exported == "/consumers/g/offsets/t/2:7\n/consumers/g/offsets/t/10:5\n"
    # To a group that is nowhere yet, in a ZooKeeper where nothing is: the names say what they are.
    memory.remove("/brokers/topics/t")
    memory.remove("/consumers/g")
    done = await consumerd("offsets", "import", "before.json", "--execute", "--rename", "g=h")
    assert (done.code, memory.dump()["/consumers/h/offsets/t/10"]) == (0, b"5")
    assert (await consumerd("group", "delete", "--group", "h", "--execute")).code == 0
    assert (await consumerd("group", "list")).rows == []


async def test_rejects_partition_names_of_the_other_dialect(
    consumerd: Command, memory: MemoryZooKeeper, group: None
) -> None:
    done = await consumerd("offsets", "set", "--group", "g", "t/0-1=5")
    assert (done.code, "TOPIC/PARTITION" in done.err) == (ExitCode.USAGE, True)
    memory.remove("/consumers/g")
    memory.put("/brokers/ids/0", OLD_BROKER)
    done = await consumerd("offsets", "set", "--group", "g", "t/1=5")
    assert (done.code, "TOPIC/BROKER-PARTITION" in done.err) == (ExitCode.USAGE, True)


async def test_doctor_explains_findings(
    consumerd: Command, memory: MemoryZooKeeper, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumerd.operate.admin.doctor.SETTLING", 0.05)
    doctor = ("group", "doctor", "--group", "g", "--interval", "0")
    for number in range(1, 11):
        memory.put(
            f"/brokers/topics/t/partitions/{number}/state", memory.dump()["/brokers/topics/t/partitions/0/state"]
        )
    done = await consumerd(*doctor)
    assert (done.code, [row[1:3] for row in done.rows]) == (
        ExitCode.CHECK_FAILED,
        [["no-brokers", "/brokers/ids"], ["silent-broker", "brokers"]],
    )
    assert "no broker with a PLAINTEXT listener is registered" in done.rows[1][3]
    memory.put("/brokers/ids/0", NEW_BROKER % 1)
    memory.remove("/consumers/g/owners/t/2")
    memory.put("/consumers/g/owners/t/2", b"g_old-0")
    memory.put("/consumers/g/ids/g_c", b'{ "t": 1 }', session_id=B)
    done = await consumerd(*doctor, "--fix", "--execute", "--json")
    document = json.loads(done.out)
    assert done.code == ExitCode.CHECK_FAILED
    assert [(each["kind"], each["subject"]) for each in document["findings"][:3]] == [
        ("no-brokers", "brokers 0"),
        ("mixed-dialects", "g_c"),
        ("stale-owner", "t/2"),
    ]
    assert document["steps"] == ["delete /consumers/g/owners/t/2", "nudge the group"]
    assert document["needs_force"] == ["delete /consumers/g/ids/g_c"]
    assert "/consumers/g/owners/t/2" not in memory.dump()
    kinds = ["no-brokers", "mixed-dialects", "gave-up", "unowned", "silent-broker"]
    assert [each["kind"] for each in document["remaining"]] == kinds


async def test_includes_internal_topics_that_are_named(
    consumerd: Command, memory: MemoryZooKeeper, group: None
) -> None:
    memory.put("/brokers/topics/__consumer_offsets", b'{"version":1,"partitions":{"0":[0]}}')
    memory.put(
        "/consumers/g/ids/g_a", (MEMBER % 1).replace('"t":1', '"t":1,"__consumer_offsets":1').encode(), session_id=A
    )
    done = await consumerd("group", "verify", "--group", "g")
    assert done.rows == [["__consumer_offsets/0", "has no owner; expected owner g_a-0"]]


async def test_lists_and_describes_topics(consumerd: Command, memory: MemoryZooKeeper, group: None) -> None:
    memory.put("/brokers/ids/0", NEW_BROKER % 1)
    assert (await consumerd("topics", "list")).rows == [["t", "11", "1", "10"]]
    document = json.loads((await consumerd("topics", "list", "--json")).out)
    assert document["topics"]["t"] == {"partitions": 11, "replicas": 1, "without_leader": 10}
    rows = (await consumerd("topics", "describe")).rows
    assert rows[0][:7] == ["t/0", "0 127.0.0.1:1", "0", "0", "", "", ""]
    assert rows[10][:4] == ["t/10", "none", "0", ""]
    assert (await consumerd("topics", "describe", "--topic", "u")).code == ExitCode.NOT_FOUND
    done = await consumerd("topics", "delete", "--topic", "t")
    assert (done.code, done.rows, "dry run" in done.err) == (0, [["t", "11", "0"]], True)
    done = await consumerd("topics", "delete", "--topic", "t", "--execute", "--timeout", "0.1")
    assert (done.code, "marked for deletion, but not deleted" in done.err) == (ExitCode.BROKER, True)
    assert memory.dump()["/admin/delete_topics/t"] == b""
    create = ("topics", "create", "--replica-assignment", "0,0", "--timeout", "0.1")
    done = await consumerd(*create, "--topic", "t")
    assert (done.code, "marked for deletion" in done.err) == (ExitCode.REFUSED, True)
    done = await consumerd(*create, "--topic", "u", "--config", "a=b=c")
    assert (done.code, "partitions [0, 1] have no leader yet" in done.err) == (0, True)
    assert memory.dump()["/brokers/topics/u"] == b'{"version":1,"partitions":{"0":[0],"1":[0]}}'
    assert memory.dump()["/config/topics/u"] == b'{"version":1,"config":{"a":"b=c"}}'


@pytest.mark.parametrize(
    ("broker", "options", "code", "says"),
    [
        (OLD_BROKER, ["--partitions", "1", "--replication-factor", "1"], ExitCode.USAGE, "when the first message"),
        (None, ["--partitions", "1", "--replication-factor", "1"], ExitCode.NOT_FOUND, "no broker is registered"),
        (NEW_BROKER % 4, ["--partitions", "1", "--replication-factor", "1"], ExitCode.USAGE, "--bootstrap-server"),
        (NEW_BROKER % 1, ["--partitions", "1"], ExitCode.USAGE, "needs --partitions and --replication-factor"),
        (NEW_BROKER % 1, ["--replica-assignment", "0,7"], ExitCode.USAGE, r"brokers \[7\] .* not alive"),
        (NEW_BROKER % 1, ["--replica-assignment", "0:0"], ExitCode.USAGE, "different brokers"),
        (NEW_BROKER % 1, ["--replica-assignment", "x"], ExitCode.USAGE, "BROKER:BROKER"),
        (NEW_BROKER % 1, ["--replica-assignment", "0", "--partitions", "1"], ExitCode.USAGE, "either"),
        (NEW_BROKER % 1, ["--replica-assignment", "0", "--config", "daemon.toml"], ExitCode.USAGE, "KEY=VALUE"),
        (NEW_BROKER % 1, ["--replica-assignment", "0", "--topic", "a b"], ExitCode.USAGE, "cannot be a topic"),
    ],
)
async def test_rejects_topics_that_cannot_be_created(
    consumerd: Command, memory: MemoryZooKeeper, broker: bytes | None, options: list[str], code: ExitCode, says: str
) -> None:
    if broker is not None:
        memory.put("/brokers/ids/0", broker)
    done = await consumerd("topics", "create", "--topic", "t", *options)
    assert done.code == code
    assert re.search(says, done.err)
    assert "/brokers/topics/t" not in memory.dump()
    if broker == OLD_BROKER:
        done = await consumerd("topics", "delete", "--topic", "t")
        assert (done.code, "0.7 delete no topics" in done.err) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--zookeeper", "a:1", "--bootstrap-server", "b:1"], "either --zookeeper or --bootstrap-server"),
        (["--bootstrap-server", "b"], "is not of the form host:port"),
        (["--bootstrap-server", "b:1,c:99999"], "is not of the form host:port"),
        ([], "give --zookeeper, --bootstrap-server, or"),
    ],
)
async def test_rejects_contradicting_cluster_options(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["topics", "list", *options]) == ExitCode.USAGE
    assert says in capsys.readouterr().err
