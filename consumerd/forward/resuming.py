"""What of a source partition the target has already: its last message there, by the headers.

Strategy: with the placing `keep` one partition of the target holds all of a source partition, in order, and chunk after
chunk was acknowledged before the next one went out. So the last identity there says that everything before it is there,
too. The log is read backwards in windows that grow, and only so far: where the last `LOOK_BACK` messages hold none of
the partition, what the group has committed counts, and at worst something comes again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from consumerd.forward.identity import read_identity

if TYPE_CHECKING:
    from consumerd.forward.identity import SourceIdentity
    from consumerd.forward.target_log import TargetLog
    from consumerd.partition import TopicPartition

log = structlog.get_logger(__name__)

#: Offsets of the target that are looked through, at most.
LOOK_BACK: Final = 500_000
_FIRST_WINDOW: Final = 2_000


async def last_forwarded(
    target: TargetLog, topic: str, place: int, source: TopicPartition, cluster: str | None
) -> SourceIdentity | None:
    """The last identity of `source` among the last messages of `topic`/`place`. Raises BrokerError."""
    start, end = await target.bounds(topic, place)
    least = max(start, end - LOOK_BACK)
    high, window = end, _FIRST_WINDOW
    while high > least:
        low = max(least, high - window)
        found: SourceIdentity | None = None
        async for records in target.read(topic, place, low, high):
            for record in records:
                identity = read_identity(record.headers)
                if identity is not None and identity.partition == source and identity.cluster == cluster:
                    found = identity
        if found is not None:
            return found
        high, window = low, 4 * window
    if least > start:
        log.warning(
            "nothing_found_on_target", partition=str(source), target=f"{topic}/{place}", looked_at=end - least,
            reason="the committed offset counts",
        )  # fmt: skip
    return None
