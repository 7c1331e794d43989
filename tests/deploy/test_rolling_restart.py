"""The pods of the StatefulSet, as plain processes, are replaced one after the other: nothing is lost or repeated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from consumerd.base.errors import ExitCode
from consumerd.demo.audit import AuditResult
from consumerd.demo.processes import format_toml
from tests.deploy.manifests import KUBERNETES, load
from tests.deploy.pods import StatefulSet
from tests.kill.conftest import GROUP, PARTITIONS, Cluster
from tests.kill.mirrors import TOPIC

pytestmark = [pytest.mark.kill, pytest.mark.zookeeper]

PATIENCE = 90.0


@pytest_asyncio.fixture
async def members(cluster: Cluster, tmp_path: Path) -> AsyncIterator[StatefulSet]:
    """The StatefulSet of the base, not started. Its configuration is the cluster's, with handlers that record."""
    etc = tmp_path / "etc"
    etc.mkdir()
    tables: dict[str, dict[str, Any]] = {
        "group": {"id": GROUP, "topics": {TOPIC: 1}},
        "zookeeper": {"connect": cluster.chroot, "session_timeout": 30.0},
        "fetch": {"size": 20_000, "idle_backoff": 0.1},
        "commit": {"interval": 60.0},  # so that what a stop commits shows
        "handler": {
            "name": "consumerd.demo.recorder:RecordHandler",
            "options": {"directory": str(cluster.records), "pause": 0.02},
        },
        "health": {"metrics": True},
        "log": {"format": "json"},
    }
    (etc / "config.toml").write_text(format_toml(tables))
    (manifest,) = load((KUBERNETES / "base" / "statefulset.yaml").read_text())
    volumes = {"/etc/consumerd": etc, "/var/lib/consumerd": tmp_path / "output", "/tmp": tmp_path / "tmp"}
    found = StatefulSet(manifest, tmp_path, volumes)
    yield found
    await found.close()


def assert_nothing_lost_or_repeated(result: AuditResult) -> None:
    assert result.sound, result
    assert result.produced == result.distinct > 500
    assert result.duplicated == 0, result


async def test_rolling_restart_of_three_loses_and_repeats_nothing(cluster: Cluster, members: StatefulSet) -> None:
    async with cluster.producing():
        await members.start(PATIENCE)
        await cluster.wait_all_owned(3)
        await members.roll(PATIENCE)
        await cluster.wait_all_owned(3)
    assert_nothing_lost_or_repeated(await cluster.wait_handled())
    for pod in members.pods:
        assert pod.exit_codes == [ExitCode.OK], pod.output()
        assert pod.failed is None
        # The member's id is the pod's name, before and after.
        assert f'"consumer": "{GROUP}_{pod.name}"' in pod.output()
    assert len(await cluster.committed()) == PARTITIONS
