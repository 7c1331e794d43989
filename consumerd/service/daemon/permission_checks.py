"""Whether a member has the permissions that it needs, as the servers themselves decide it; nothing is changed.

Strategy: each look is a request that the server authorizes before it finds another reason to refuse it. A broker
looks at the permission Read before it sees that a FETCH begins beyond every log, or that a HEARTBEAT is of a member
that the group does not have. ZooKeeper checks the ACL of each node of a multi whose last operation always fails, so
that nothing of it remains.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from consumerd.base.errors import ZooKeeperError
from consumerd.base.ports import Check, Create, Operation, SetData, ZooKeeper
from consumerd.net.client.cluster import ClusterClient, topic_partitions
from consumerd.net.client.errors import error_of, topic_error
from consumerd.net.client.fetching import fetch_partitions
from consumerd.net.cluster.reading import children
from consumerd.net.zk.errors import MultiFailed, NoAuth, NoNode
from consumerd.wire.registry.paths import ids_path, offsets_path, owners_path
from consumerd.wire.v08 import ErrorCode
from consumerd.wire.v08.apis import HEARTBEAT
from consumerd.wire.v08.fetch_session import PartitionFetch

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import HeartbeatRequest

#: An offset that no log has, and a version that no node has.
_NO_OFFSET: Final = 1 << 62
_NO_VERSION: Final = (1 << 31) - 1
#: Nodes whose data are written by one multi.
_AT_ONCE: Final = 50


async def require_read(client: ClusterClient, topics: Sequence[str]) -> None:
    """Require the permission Read on each topic, at the leader of one of its partitions.

    Raises BrokerRefusedError for a missing permission; BrokerError.
    """
    by_leader: dict[int, list[PartitionFetch]] = {}
    for topic, numbers in (await topic_partitions(client, topics)).items():
        leader = await client.leader(topic, numbers[0])
        by_leader.setdefault(leader.id, []).append(PartitionFetch(topic, numbers[0], _NO_OFFSET, 1))
    for node_id, partitions in by_leader.items():
        fetched = await fetch_partitions(await client.node_channel(node_id), partitions, max_bytes=1)
        for (topic, _), found in fetched.partitions.items():
            denied = found.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if denied and (error := topic_error(found.error, f"the topic {topic!r} cannot be read", topic, "Read")):
                raise error


async def require_group(client: ClusterClient, group: str) -> None:
    """Require the permission Read on the group, at its coordinator. Raises BrokerRefusedError; BrokerError."""

    async def beat() -> None:
        body: HeartbeatRequest = {"group_id": group, "generation_id": -1, "member_id": f"check-{uuid.uuid4()}"}
        answer = await client.call_coordinator(group, HEARTBEAT, body)
        if answer["error_code"] == ErrorCode.GROUP_AUTHORIZATION_FAILED:
            said = f"the client lacks the permission Read on the group {group!r}"
            if error := error_of(answer["error_code"], f"cannot be a member of group {group!r}", said):
                raise error

    await client.retrying(f"look at the permissions of group {group!r}", beat)


async def require_nodes(session: ZooKeeper, group: str, topics: Sequence[str], *, member: bool, offsets: bool) -> str:
    """Require that a member can write its nodes in ZooKeeper: id and owners if it is a `member`, and `offsets`.

    Return a phrase. Raises ZooKeeperError (a missing permission, with the node's path).
    """
    if not session.has_multi:
        return "whether its nodes can be written is unknown, because ZooKeeper before 3.4 has no multi"
    folders = [ids_path(group), *(owners_path(group, topic) for topic in topics)] if member else []
    if offsets:
        folders += [offsets_path(group, topic) for topic in topics]
    for folder in folders:
        await _require(session, [*await _missing(session, folder), Create(f"{folder}/check-{uuid.uuid4()}", b"")])
    if offsets:
        for topic in topics:
            for some in _pieces(await children(session, offsets_path(group, topic))):
                await _require(session, [SetData(f"{offsets_path(group, topic)}/{name}", b"") for name in some])
    return "its nodes can be written"


async def _require(session: ZooKeeper, operations: list[Operation]) -> None:
    """Attempt the operations together with one that fails. Raises the error of one that failed before that."""
    try:
        await session.multi([*operations, Check(operations[-1].path, _NO_VERSION)])
    except MultiFailed as error:
        if error.index < len(operations) and isinstance(error.cause, NoAuth):
            raise error.cause from None
        if error.index < len(operations) and not isinstance(error.cause, NoNode):
            raise ZooKeeperError(f"whether {operations[-1].path} can be written is unknown: {error.cause}") from error


async def _missing(session: ZooKeeper, folder: str) -> list[Operation]:
    """The operations that create what is missing of a folder and those above it."""
    missing: list[Operation] = []
    while folder and await session.exists(folder) is None:
        missing.insert(0, Create(folder, None))
        folder = folder.rpartition("/")[0]
    return missing


def _pieces(names: list[str]) -> Iterator[list[str]]:
    return (names[first : first + _AT_ONCE] for first in range(0, len(names), _AT_ONCE))
