"""The log of a daemon that leaves after its session has expired."""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.base.errors import ExitCode
from consumerd.base.partition import TopicPartition
from consumerd.wire.registry.paths import ids_path

pytestmark = [pytest.mark.zookeeper]

PARTITIONS = [TopicPartition("t", 0, number) for number in range(3)]


async def frozen_until_expired(world: Any, daemon: Any) -> None:
    """Stop the process until its session has expired and its nodes are deleted."""
    daemon.pause()

    async def gone() -> bool:
        return not await world.zk.children(ids_path("g"))

    await world.until(gone)


def said(daemon: Any, name: str) -> list[dict[str, Any]]:
    return [event for event in daemon.events() if event["event"] == name]


def begun(daemon: Any) -> int:
    """Partitions that began, in lines for one or for several."""
    return sum(event.get("partitions", 1) for event in said(daemon, "partition_started"))


@pytest.mark.parametrize("handler", [{"name": "print"}, {"name": "bad_handlers:Stalled"}], ids=["idle", "in hand"])
async def test_partitions_of_expired_sessions_count_as_lost(world: Any, handler: dict[str, Any]) -> None:
    await world.broker(partitions=len(PARTITIONS))
    for partition in PARTITIONS:
        await world.append(partition, b"one")
    daemon = await world.daemon(handler=handler, rebalance={"drain_timeout": 0.2})
    for expired in (0, 1, 2):
        started = len(PARTITIONS) * (expired + 1)
        await world.until(lambda: begun(daemon) == started)  # noqa: B023
        if expired < 2:
            await frozen_until_expired(world, daemon)
            daemon.resume()
    daemon.terminate()
    assert await daemon.wait(60) == ExitCode.OK
    (left,) = said(daemon, "member_left")
    assert left["lost_partitions"] == 2 * len(PARTITIONS)


async def test_partitions_of_a_session_that_expired_before_the_stop_count_as_lost(world: Any) -> None:
    await world.broker(partitions=len(PARTITIONS))
    for partition in PARTITIONS:
        await world.append(partition, b"one")
    # Handled messages cannot be committed any more: the drain retries until the expiry is known.
    daemon = await world.daemon(
        commit={"interval": 1000.0}, rebalance={"drain_timeout": 60.0}, daemon={"stop_timeout": 90.0}
    )
    await world.until_printed(daemon, "one", "one", "one")
    await frozen_until_expired(world, daemon)
    daemon.terminate()
    daemon.resume()
    assert await daemon.wait(60) == ExitCode.OK
    (left,) = said(daemon, "member_left")
    assert left["lost_partitions"] == len(PARTITIONS)
