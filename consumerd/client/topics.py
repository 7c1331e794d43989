"""Looking up the partitions of topics, and reporting topics that do not exist.

Strategy: brokers learn of a new topic at different times, so one that does not know it yet is asked a few times more;
every other error is retried as elsewhere in the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from consumerd.client.errors import error_of
from consumerd.errors import BrokerError, NotFoundError
from consumerd.wire.v08.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from consumerd.client.cluster import ClusterClient

#: How often brokers may say that there is no such topic; the pauses between take some 0.7 s together.
_LOOKS: Final = 4


async def topic_partitions(client: ClusterClient, topics: Sequence[str]) -> dict[str, list[int]]:
    """The numbers of the partitions of each topic, sorted. Brokers are asked not to create any (since 0.11).

    Raises NotFoundError for a topic that does not exist, BrokerRefusedError for one that may not be seen or has no
    leaders, BrokerError.
    """
    looks = 0

    async def ask() -> dict[str, list[int]]:
        nonlocal looks
        metadata = await client.refresh(topics)
        found: dict[str, list[int]] = {}
        for name in topics:
            topic = metadata.topics.get(name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                looks += 1
                if looks >= _LOOKS:
                    raise NotFoundError(
                        f"the brokers have no topic {name!r}; see `consumerd topics list`, or make it with `consumerd "
                        f"topics create --topic {name}`."
                    )
            what = f"the topic {name!r} cannot be used"
            if (error := error_of(code, what)) is not None:
                raise error
            assert topic is not None
            if not topic.partitions:
                raise error_of(ErrorCode.LEADER_NOT_AVAILABLE, what) or BrokerError(what)
            found[name] = sorted(topic.partitions)
        return found

    return await client.retrying(f"find {', '.join(topics)}", ask)
