"""The runbook docs/disaster.md, by its very commands: three disks become a new cluster, and groups continue."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.demo.processes import clean_environment
from consumerd.net.client.topic_configs import topic_settings
from consumerd.operate.admin.v08.topic_nodes import TopicPlan
from consumerd.operate.admin.v08.topic_requests import TopicsByRequests
from tests.interop.test_restore import FIRST, content, in_order, messages, produce, receive

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "disaster.md"
PATIENCE = 120.0
PARTITIONS = 3
#: Of the topics on the old cluster; the second one has no message.
SETTINGS = {
    "events": {"max.message.bytes": "500000", "retention.ms": "864000000000"},
    "table": {"cleanup.policy": "compact"},
}


def blocks() -> dict[str, str]:
    """The commands of the page, by the name in their first line."""
    found: list[str] = re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return {block.splitlines()[0].removeprefix("# "): block for block in found}


async def run(name: str, disks: Path, bootstrap: str = "") -> tuple[int, str]:
    """Run a block; returns its exit code and all output."""
    text = blocks()[name].replace("/disks/", f"{disks}/").replace("new:9092", bootstrap)
    environment = clean_environment()
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    process = await asyncio.create_subprocess_exec(
        "bash", "-ec", text, cwd=disks.parent, env={**environment, "PATH": path}, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    print(text, output.decode(), process.returncode)  # noqa: T201
    assert process.returncode is not None
    return process.returncode, output.decode()


@pytest.mark.long
async def test_three_disks_become_a_new_cluster_and_groups_continue(
    kafka_cluster: Any, cluster_client: Any, tmp_path: Path
) -> None:
    disks = tmp_path / "disks"
    async with kafka_cluster("3.9.1", partitions=PARTITIONS) as old:
        async with cluster_client(*old.brokers.values()) as client:
            for topic, config in SETTINGS.items():
                await TopicsByRequests(client).create(TopicPlan(topic, PARTITIONS, 3, config=config), timeout=PATIENCE)
            await TopicsByRequests(client).wait_until_known(list(SETTINGS))
            await produce(client, PARTITIONS)
            handled = await receive(old.bootstrap[0], "billing", FIRST, reset="earliest")
            old.brokers[3].kill()  # from here on its copies are shorter, and have an earlier leader epoch
            await produce(client, PARTITIONS, since=1_600_000_000_000)
            before = await content(client, PARTITIONS)
            handled += await receive(old.bootstrap[0], "billing", FIRST, reset="earliest")
        old.kill()
        for number, broker in old.brokers.items():
            shutil.copytree(broker.log_directory, disks / str(number))
    shutil.rmtree(tmp_path / "cluster")
    assert sum(map(len, before)) == 2 * (40 + 2 * 2 * PARTITIONS)

    code, output = await run("look", disks)
    assert code == ExitCode.OK
    assert "\tbilling\tevents/" in output
    code, output = await run("verify", disks)
    assert code in (ExitCode.OK, ExitCode.CHECK_FAILED)
    kinds = set(re.findall(r"^finding\t([^\t]+)", output, re.MULTILINE))
    assert "shorter-copy" in kinds
    assert kinds <= {"shorter-copy", "diverged-copy", "torn-tail"}

    async with kafka_cluster("3.9.1", partitions=1, config={"auto.create.topics.enable": "false"}) as new:
        bootstrap = ",".join(new.bootstrap)
        code, output = await run("replay", disks, bootstrap)
        assert code == ExitCode.OK, output
        async with cluster_client(*new.brokers.values()) as client:
            assert await content(client, PARTITIONS) == before
            topic = (await client.refresh(["events"])).topics["events"]
            assert {len(partition.replicas) for partition in topic.partitions.values()} == {3}
            keys = ["cleanup.policy", "max.message.bytes", "min.compaction.lag.ms", "retention.ms"]
            settings = await topic_settings(client, list(SETTINGS), keys)
        assert [settings["events"][key] for key in keys] == ["delete", "500000", "0", "-1"]
        assert [settings["table"][key] for key in keys] == ["compact", "1048588", str((1 << 63) - 1), "-1"]
        assert "topic 'table' had other settings: when the groups have caught up, remove min.comp" in output
        for step in ("plan", "move", "move"):
            code, output = await run(step, disks, bootstrap)
            assert code == ExitCode.OK, output
        everything = messages(before)
        rest = await receive(new.bootstrap[0], "billing", len(everything) - len(handled), reset="earliest")
        assert in_order(handled + rest) == everything
        code, output = await run("check", disks, bootstrap)
        assert code == ExitCode.OK, output


def test_runs_every_command_of_the_page() -> None:
    source = Path(__file__).read_text("utf-8")
    assert [name for name in blocks() if f'"{name}"' not in source] == []
    assert len(blocks()) == 6
