"""Commit the offsets that a stream has reached to ZooKeeper, for tools that show lag. They are never read back.

Strategy: the group must not be in use. At the start of a stream, and at each write, a member or owner in it is a reason
to refuse; the write itself is the multi of `consumerd.operate.admin.editing`, which fails if a consumer claims a
partition at that moment. A ZooKeeper that is unavailable for a while does not end the stream: that is logged, and the
next write retries.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from consumerd.base.errors import NotFoundError, ZooKeeperError
from consumerd.base.partition import TopicPartition
from consumerd.net.zk.session import Session
from consumerd.operate.admin.changes import OffsetChange
from consumerd.operate.admin.editing import write_changes
from consumerd.operate.admin.errors import RefusedError
from consumerd.operate.admin.snapshot import V07GroupSnapshot, read_v07_snapshot
from consumerd.spark.source.offsets import Offsets, entries
from consumerd.spark.source.option_texts import OptionError
from consumerd.spark.source.v07.zookeeper import ask_zookeeper
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.paths import check_name, offset_path

log = logging.getLogger(__name__)

#: Seconds to wait for ZooKeeper.
TIMEOUT = 10.0


class ZooKeeperCommitter:
    """Writes the offsets of `group`; a `Committer`. `timeout`: seconds to wait for ZooKeeper.

    Not from within a running event loop. Methods raise RefusedError for a group that is in use, ZooKeeperError.
    """

    def __init__(self, zookeeper: str, group: str, timeout: float = TIMEOUT) -> None:
        self._zookeeper = zookeeper
        self._group = group
        self._timeout = timeout

    def check(self) -> None:
        """Raise RefusedError if the group has members or owners, OptionError for an invalid name."""
        try:
            check_name("group", self._group)
        except RegistryError as error:
            raise OptionError(f"invalid option groupId: {error}") from None

        async def look(session: Session) -> None:
            await _unused(session, self._group)

        ask_zookeeper(self._zookeeper, self._timeout, look)

    def commit(self, offsets: Offsets) -> int:
        """Write where a stream is; returns how many nodes changed. Every partition has a broker.

        Raises ChangedMeanwhileError, too.
        """
        wanted = {TopicPartition.parse(topic, name): offset for (topic, name), offset in entries(offsets)}

        async def write(session: Session) -> int:
            snapshot = await _unused(session, self._group)
            return await write_changes(session, _changes(self._group, snapshot, wanted), force=False)

        return ask_zookeeper(self._zookeeper, self._timeout, write)

    def commit_if_possible(self, offsets: Offsets) -> None:
        """`commit`, but only log a warning while ZooKeeper is unavailable."""
        try:
            self.commit(offsets)
        except ZooKeeperError as error:
            log.warning(
                "cannot commit the offsets of group %s, which the next batch will retry: %s", self._group, error
            )


async def _unused(session: Session, group: str) -> V07GroupSnapshot | None:
    """The group, None if it does not exist. Raises RefusedError if it is in use."""
    try:
        snapshot = await read_v07_snapshot(session, group, brokers=False)
    except NotFoundError:
        return None
    who = [f"member {name}" for name in snapshot.view.members]
    who += [f"an owner of {partition}" for partition in snapshot.view.owners]
    if who:
        raise RefusedError(
            f"the group {group} is in use ({who[0]} is alive), so its offsets are not overwritten; "
            "use another groupId, or remove commitOffsets"
        )
    return snapshot


def _changes(group: str, snapshot: V07GroupSnapshot | None, wanted: Mapping[TopicPartition, int]) -> list[OffsetChange]:
    changes = []
    for partition, offset in wanted.items():
        before = version = None
        if snapshot is not None:
            before = snapshot.view.offsets.get(partition)
            stat = snapshot.view.stats.get(offset_path(group, partition))
            version = None if stat is None else stat.version
        changes.append(OffsetChange(group, partition, before, offset, version))
    return changes
