"""One request for the ends of leaders' epochs, as each version of brokers knows it, and its answers."""

from __future__ import annotations

import pytest

from consumerd.net.client.epochs import EpochEnd, epoch_ends
from consumerd.wire.errors import FrameError
from consumerd.wire.v08.apis import LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from consumerd.wire.v08.errors import UnsupportedApiError
from consumerd.wire.v08.versions import BrokerRelease, BrokerVersions
from tests.unit.net.client import test_offsets


class OneVersion(test_offsets.OneVersion):
    api = OFFSET_FOR_LEADER_EPOCH
    name = "topic"


def part(number: int, error: int, epoch: int, end: int) -> dict[str, int]:
    return {"partition": number, "error_code": error, "leader_epoch": epoch, "end_offset": end}


@pytest.mark.parametrize("version", range(OFFSET_FOR_LEADER_EPOCH.versions[1] + 1))
async def test_tells_where_epochs_end_in_every_version(version: int) -> None:
    channel = OneVersion(version, part(0, 0, 4, 70), part(1, 75, -1, -1))
    found = await epoch_ends(channel, [("t", 0, 6, 5), ("t", 1, 9, 9)])  # type: ignore[arg-type]
    assert found == {("t", 0): EpochEnd(0, 4 if version else -1, 70), ("t", 1): EpochEnd(75, -1, -1)}
    (topic,) = channel.asked["topics"]
    assert topic["topic"] == "t"
    assert [(each["partition"], each["leader_epoch"]) for each in topic["partitions"]] == [(0, 5), (1, 9)]
    fenced = [each["current_leader_epoch"] for each in topic["partitions"] if version >= 2]
    assert fenced == ([6, 9] if version >= 2 else [])
    assert channel.asked.get("replica_id", -1) == -1


async def test_an_epoch_that_the_log_does_not_have_has_no_end() -> None:
    found = await epoch_ends(OneVersion(3, part(0, 0, -1, -1)), [("t", 0, -1, 5)])  # type: ignore[arg-type]
    assert found == {("t", 0): EpochEnd(0, -1, -1)}


@pytest.mark.parametrize(("epoch", "end"), [(5, -7), (-7, 5)])
async def test_rejects_invalid_numbers_without_error_code(epoch: int, end: int) -> None:
    with pytest.raises(FrameError, match=f"broker h:9 answered with epoch {epoch} that ends at offset {end} of t/1"):
        await epoch_ends(OneVersion(3, part(1, 0, epoch, end)), [("t", 1, -1, 5)])  # type: ignore[arg-type]
    told = await epoch_ends(OneVersion(3, part(1, 6, epoch, end)), [("t", 1, -1, 5)])  # type: ignore[arg-type]
    assert told["t", 1].error == 6


async def test_brokers_before_0_11_cannot_tell() -> None:
    channel = OneVersion(0)
    channel.versions = BrokerVersions("h:9", BrokerRelease.V0_10_OR_NEWER, {LIST_OFFSETS.key: (0, 1)})
    with pytest.raises(UnsupportedApiError, match="OffsetForLeaderEpoch"):
        await epoch_ends(channel, [("t", 0, -1, 5)])  # type: ignore[arg-type]
