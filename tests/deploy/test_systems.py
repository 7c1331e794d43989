"""The image is built and runs on a read-only root; the unit runs under a real systemd. Takes minutes, and root."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.demo.ports import free_port
from consumerd.demo.processes import format_toml
from tests.deploy.manifests import ROOT
from tests.deploy.systems import Image, missing_tools
from tests.kill.conftest import GROUP, Cluster
from tests.kill.mirrors import TOPIC
from tests.kill.test_sink_kills import Place, held

pytestmark = [
    pytest.mark.long,
    pytest.mark.zookeeper,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(missing_tools() != "", reason=missing_tools()),
]

PATIENCE = 120.0
TOKEN = "from-the-credential-store"
CREDENTIAL = "/run/credentials/consumerd@events.service/http-token"
#: Shorter than an operator would have it: a hung process is killed after seconds here.
DROP_IN = "[Service]\nWatchdogSec=4s\nTimeoutAbortSec=1s\n"
DRIVER = """
[Service]
Type=oneshot
ExecStart=/usr/bin/python3 /results/operator_script.py
StandardOutput=file:/results/script.log
StandardError=inherit
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    directory = tmp_path_factory.mktemp("image")
    made = Image(directory)
    yield made
    made.close()
    shutil.rmtree(directory)


def configuration(cluster: Cluster, output: str, port: int, **health: Any) -> str:
    return configured(cluster, GROUP, {"name": "files", "options": {"directory": output}}, port, **health)


def configured(cluster: Cluster, group: str, handler: dict[str, Any], port: int, **health: Any) -> str:
    return format_toml(
        {
            "group": {"id": group, "topics": {TOPIC: 1}},
            "zookeeper": {"connect": cluster.chroot, "session_timeout": 4.0},
            "commit": {"interval": 60.0},  # so that what a stop commits shows
            "handler": handler,
            "health": {"listen": f"127.0.0.1:{port}", **health},
        }
    )


def places(directory: Path) -> Counter[Place]:
    """The identities in the files, whose folder is that of the partition."""
    return Counter(
        (path.parent.name, record["offset"], record["index"])
        for path in directory.rglob("*.ndjson")
        for record in map(json.loads, path.read_bytes().splitlines())
    )


async def wait_until_written(cluster: Cluster, directory: Path) -> None:
    """Until the files hold as many messages as the log. Files appear when they are whole: they are polled."""
    async with asyncio.timeout(PATIENCE):
        while places(directory).total() < len(held(cluster)):
            await asyncio.sleep(0.2)


async def test_image_runs_as_its_user_on_a_read_only_root(image: Image, cluster: Cluster, tmp_path: Path) -> None:
    etc, state = tmp_path / "etc", tmp_path / "state"
    etc.mkdir()
    state.mkdir()
    user, group = map(int, image.config["User"].split(":"))
    shutil.chown(state, user, group)
    (etc / "config.toml").write_text(configuration(cluster, "/var/lib/consumerd/files", free_port()))
    version = image.enter(["--version"], etc=etc, state=state)
    assert version.communicate(timeout=PATIENCE)[0].startswith("consumerd ")
    process = image.enter(["run", "-c", "/etc/consumerd/config.toml"], etc=etc, state=state)
    try:
        async with cluster.producing():
            await cluster.wait_all_owned(1)
        await wait_until_written(cluster, state)
        process.send_signal(signal.SIGTERM)
        output, _ = await asyncio.to_thread(process.communicate, timeout=PATIENCE)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert process.returncode == ExitCode.OK, output
    assert all((path.stat().st_uid, path.stat().st_gid) == (user, group) for path in state.rglob("*"))
    assert places(state) == dict.fromkeys(held(cluster), 1)
    assert await cluster.committed() == ends(cluster)


def ends(cluster: Cluster) -> dict[TopicPartition, int]:
    folder = cluster.broker.log_directory
    return {
        each: sum(path.stat().st_size for path in (folder / f"{each.topic}-{each.partition}").glob("*.kafka"))
        for each in cluster.partitions
    }


async def test_unit_starts_restarts_and_stops_under_systemd(image: Image, cluster: Cluster, tmp_path: Path) -> None:
    results, etc, units, secrets = (tmp_path / name for name in ("results", "etc", "units", "credstore"))
    for folder in (results, etc, units / "consumerd@.service.d", secrets):
        folder.mkdir(parents=True)
    port = free_port()
    text = configuration(cluster, "files", port, status=True, token_file=CREDENTIAL)
    (etc / "events.toml").write_text(text)
    (etc / "bad.toml").write_text('[group]\nid = ""\n')
    (secrets / "events.http-token").write_text(TOKEN)
    program = 'while read -r line; do echo "$line" >&2; echo ok; done'
    options = {
        "exec": {"command": ["/bin/sh", "-c", program]},
        "print": {},
        "null": {},
        "http": {"url": "http://127.0.0.1:RECEIVER/messages"},
    }
    for name, given in options.items():
        handler = {"name": name, "options": given}
        (etc / f"{name}.toml").write_text(configured(cluster, name, handler, port, metrics=True))
    (results / "port.json").write_text(str(port))
    shutil.copy(ROOT / "tests/deploy/operator_script.py", results)
    unit = units / "consumerd@.service"
    shutil.copy(ROOT / "systemd/consumerd@.service", unit)
    (units / "consumerd@.service.d" / "test.conf").write_text(DROP_IN)
    (units / "operator.service").write_text(DRIVER)
    system = "/etc/systemd/system"
    binds = {
        results: "/results",
        etc: "/etc/consumerd",
        secrets: "/etc/credstore",
        unit: f"{system}/{unit.name}",
        units / "consumerd@.service.d": f"{system}/consumerd@.service.d",
        units / "operator.service": f"{system}/operator.service",
    }
    async with cluster.producing():
        pass
    (results / "messages.json").write_text(str(len(held(cluster))))
    console = await asyncio.to_thread(image.boot, "operator.service", binds=binds, seconds=600)
    assert (results / "seen.json").exists(), console[-3000:] + (results / "script.log").read_text()
    seen = json.loads((results / "seen.json").read_text())
    journal = (results / "consumerd@events.service.log").read_text()
    assert seen["verify"] == [0, ""]
    assert seen["start"] == [0, ""], journal
    started = seen["started"]
    assert (started["ActiveState"], started["StatusText"]) == ("active", "member of the group")
    assert (started["WatchdogUSec"], started["LimitCORE"]) == ("4s", "0")
    assert seen["pages"] == {"/healthz": 200, "/readyz": 200, "/status.json": 401}
    assert seen["with token"] == 200
    assert seen["reload"] == [0, ""]
    assert seen["reloaded"]
    assert seen["rejected"]
    assert seen["status of an invalid file"] == "member of the group; the configuration was rejected: see the log"
    assert seen["process after reload"] == ["active", True]
    assert seen["killed"]["NRestarts"] == "1"
    assert seen["hung"]["NRestarts"] == "2", "the watchdog did not end a process that stood still"
    assert seen["stop"] == [0, ""]
    assert seen["stop seconds"] < 20  # its own deadline
    assert (seen["stopped"]["Result"], seen["stopped"]["ExecMainStatus"]) == ("success", str(int(ExitCode.OK)))
    # An invalid configuration stays invalid at the next start, too.
    assert seen["start bad"][0] != 0
    assert (seen["bad"]["ActiveState"], seen["bad"]["NRestarts"]) == ("failed", "0"), seen["bad"]
    assert "group.id" in (results / "consumerd@bad.service.log").read_text()
    for name in options:
        unit_log = (results / f"consumerd@{name}.service.log").read_text()
        assert seen[f"consumerd@{name}.service"] == [[0, ""], len(held(cluster)), [0, ""], "success"], unit_log
    assert seen["posted"] == len(held(cluster))
    assert places(results / "state") == dict.fromkeys(held(cluster), 1)
    assert await cluster.committed() == ends(cluster)
