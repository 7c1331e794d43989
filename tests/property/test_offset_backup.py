"""A backup restores the former offsets, whatever was written in between."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.base.partition import TopicPartition
from consumerd.net.cluster.view import ClusterView
from consumerd.net.connect import Connection
from consumerd.operate.admin.changes import V07ChangePlanner
from consumerd.operate.admin.editing import backup_of, write_changes
from consumerd.operate.admin.logs import BrokerLogs
from consumerd.operate.admin.offset_file import format_json, parse_offsets
from consumerd.operate.admin.snapshot import V07GroupSnapshot
from consumerd.testing.memory_zookeeper import MemoryZooKeeper
from consumerd.wire.registry.paths import offset_path
from consumerd.wire.registry.values import MAX_OFFSET

partitions = st.builds(TopicPartition, st.sampled_from(["t", "u:v"]), st.integers(0, 2), st.integers(0, 11))
offsets = st.integers(0, MAX_OFFSET)


async def nobody(host: str, port: int) -> Connection:
    raise AssertionError("no broker is registered, so none is asked")


def leaves(zookeeper: MemoryZooKeeper) -> dict[str, bytes | None]:
    return {path: data for path, data in zookeeper.dump().items() if data is not None}


@settings(max_examples=60, deadline=None)
@given(
    before=st.dictionaries(partitions, offsets, min_size=1),
    wanted=st.lists(st.dictionaries(partitions, st.none() | offsets, min_size=1), min_size=1, max_size=3),
    force=st.booleans(),
)
def test_backups_restore_in_reverse_order(
    before: dict[TopicPartition, int], wanted: list[dict[TopicPartition, int | None]], force: bool
) -> None:
    async def run() -> None:
        zookeeper = MemoryZooKeeper()
        for partition, offset in before.items():
            zookeeper.put(offset_path("g", partition), b"%d" % offset)
        async with zookeeper.session() as zk:

            async def change(to: dict[TopicPartition, int | None]) -> str:
                view = await ClusterView(zk).read_group("g")
                changes = await V07ChangePlanner(V07GroupSnapshot(view, {}), BrokerLogs({}, nobody)).set_to(to)
                await write_changes(zk, changes, force=force)
                return format_json(backup_of(changes))

            states, backups = [], []
            for to in wanted:
                states.append(leaves(zookeeper))
                backups.append(await change(to))
                for partition, after in to.items():
                    data = leaves(zookeeper).get(offset_path("g", partition))
                    assert data == (None if after is None else b"%d" % after)
            while backups:
                await change(parse_offsets(backups.pop(), "backup")["g"])
                assert leaves(zookeeper) == states.pop()

    asyncio.run(run())
