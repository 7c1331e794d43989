"""The settings of a topic that is created to replay an archive into, by what the cluster's metadata say that it had.

Strategy: settings that any release has, and that change nothing of what is replayed, are kept. Nothing may be deleted,
compacted, refused or stamped again before the messages were compared and the groups have read them: so retention and
compaction wait, and limits on times are left out. What is left out, or set differently, is returned to be set later.
Settings of one cluster (throttles, tiered storage) are left out, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

RETENTION: Final = "retention.ms"
POLICY: Final = "cleanup.policy"
_LAG: Final = "min.compaction.lag.ms"
_REPLICAS: Final = "min.insync.replicas"
#: What every topic is created with: messages that are older than the brokers' default would be deleted at once.
_KEEP: Final[Mapping[str, str]] = {RETENTION: "-1", "retention.bytes": "-1"}
_NEVER: Final = str((1 << 63) - 1)
_KEPT: Final = frozenset(
    {
        *(POLICY, "compression.type", "delete.retention.ms", "file.delete.delay.ms", "flush.messages", "flush.ms"),
        *("index.interval.bytes", "max.message.bytes", "min.cleanable.dirty.ratio", "preallocate", "segment.bytes"),
        *("segment.index.bytes", "segment.jitter.ms", "segment.ms", "unclean.leader.election.enable"),
    }
)
#: Beginnings of the names of settings that are of one cluster.
_OF_CLUSTER: Final = ("leader.replication.", "follower.replication.", "remote.", "local.")


class CreatedSettings(NamedTuple):
    """`now`: what to create the topic with. `later`: what it had; None for what has to be removed again."""

    now: dict[str, str]
    later: dict[str, str | None]

    def sentence(self, topic: str) -> str:
        """What to do when the groups have caught up."""
        back = [f"{key}={value}" for key, value in sorted(self.later.items()) if value is not None]
        removed = sorted(key for key, value in self.later.items() if value is None)
        steps = [f"set {' '.join(back)}"] if back else []
        steps += [f"remove {' '.join(removed)}"] if removed else []
        return f"topic {topic!r} had other settings: when the groups have caught up, {', and '.join(steps)}"


def created_settings(had: Mapping[str, str], replicas: int | None) -> CreatedSettings:
    """Settings for a topic that `had` these on a cluster. `replicas`: of the new one, None for the brokers' default."""
    now = {key: value for key, value in had.items() if key in _KEPT}
    least = had.get(_REPLICAS, "")
    if replicas is not None and least.isdecimal() and int(least) <= replicas:
        now[_REPLICAS] = least
    now |= _KEEP
    if "compact" in now.get(POLICY, ""):
        now[_LAG] = _NEVER
    mine = {key: value for key, value in had.items() if not key.startswith(_OF_CLUSTER)}
    later = {key: mine.get(key) for key in sorted({*mine, *now}) if mine.get(key) != now.get(key)}
    return CreatedSettings(now, later)
