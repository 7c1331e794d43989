"""The positions of source partitions on the target, which are written in the transactions that have the messages.

Strategy: each source partition has a transactional id and a group of its own on the target. The group is a name for one
offset of the topic that is written to: it has no members. That offset is the source's, and its text names the log. A
producer that has begun its transactions has fenced every former one, and what that left open has ended: the offset that
is read then is final until this producer commits the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from consumerd.base.errors import HandlerFailedError
from consumerd.base.partition import UNKNOWN_LOG, LogId, TopicPartition
from consumerd.net.client.cluster import ClusterClient
from consumerd.net.client.errors import error_of
from consumerd.producer import TransactionOffset
from consumerd.wire.v08.apis import OFFSET_FETCH
from consumerd.wire.v08.errors import UnsupportedApiError

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import OffsetFetchRequest

#: The version of OFFSET_FETCH that waits for the end of transactions, the last one for a single group.
_STABLE: Final = 7
_NO_OFFSET: Final = -1
#: Before the topic id and leader epoch in the text of an offset.
_MARK: Final = "consumerd"


class ForwardPosition(NamedTuple):
    """The source offset of the next message to forward, and the log that it is of."""

    offset: int
    log: LogId = UNKNOWN_LOG

    def as_offset(self) -> TransactionOffset:
        """The offset to commit."""
        topic_id, epoch = self.log.topic_id_text, self.log.leader_epoch
        return TransactionOffset(self.offset, metadata=f"{_MARK} {topic_id or '-'} {'-' if epoch is None else epoch}")

    @classmethod
    def of(cls, offset: int, metadata: str | None) -> ForwardPosition:
        """Read a committed offset. A text that we did not write counts as an unknown log."""
        match (metadata or "").split(" "):
            case [mark, topic_id, epoch] if mark == _MARK:
                known = int(epoch) if epoch.isascii() and epoch.isdecimal() and len(epoch) < 11 else None
                return cls(offset, LogId.from_text(topic_id, known))
        return cls(offset)


def forward_name(group: str, cluster: str | None, source: TopicPartition) -> str:
    """The transactional id of a source partition, and the name of the group that holds its position."""
    return f"{group}{'' if cluster is None else f'@{cluster}'}/{source}"


def position_place(topic: str) -> TopicPartition:
    """The partition of which the offset is the position: the first one, which a topic on the target always has."""
    return TopicPartition.numbered(topic, 0)


async def read_position(client: ClusterClient, name: str, topic: str) -> ForwardPosition | None:
    """The position on the target's `topic` of the source partition with this `forward_name`; None before the first.

    Raises HandlerFailedError for a target before 2.5, BrokerError.
    """
    what = f"cannot read the position of {name!r}"
    body: OffsetFetchRequest = {
        "group_id": name,
        "topics": [{"name": topic, "partition_indexes": [position_place(topic).partition]}],
        "require_stable": True,
    }

    async def attempt() -> ForwardPosition | None:
        channel = await client.node_channel(await client.coordinator(name))
        try:
            version = channel.versions.pick(OFFSET_FETCH, at_least=_STABLE, at_most=_STABLE)
        except UnsupportedApiError as error:
            raise HandlerFailedError(f"exactly_once needs a target of Kafka 2.5 or later: {error}") from error
        answer = await client.call_coordinator(name, OFFSET_FETCH, body, version=version)
        codes = [answer["error_code"]]
        found: ForwardPosition | None = None
        for topic in answer["topics"]:
            for part in topic["partitions"]:
                codes.append(part["error_code"])
                if part["committed_offset"] != _NO_OFFSET:
                    found = ForwardPosition.of(part["committed_offset"], part["metadata"])
        if refusal := error_of(next(filter(None, codes), 0), what):
            client.forget_coordinator(name)
            raise refusal
        return found

    return await client.retrying(what, attempt)
