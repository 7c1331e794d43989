from __future__ import annotations

import pytest

from consumerd.operate.migrate.restored_topics import created_settings

KEEP = {"retention.ms": "-1", "retention.bytes": "-1"}


def test_nothing_is_deleted_compacted_refused_or_stamped_before_the_groups_have_caught_up() -> None:
    had = {
        "cleanup.policy": "compact,delete", "segment.bytes": "1000000", "retention.ms": "86400000",
        "max.compaction.lag.ms": "1000", "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": "5",
    }  # fmt: skip
    settings = created_settings(had, 3)
    assert settings.now == {
        "cleanup.policy": "compact,delete",
        "segment.bytes": "1000000",
        "min.compaction.lag.ms": "9223372036854775807",
        **KEEP,
    }
    assert settings.sentence("t") == (
        "topic 't' had other settings: when the groups have caught up, set max.compaction.lag.ms=1000 "
        "message.timestamp.before.max.ms=5 message.timestamp.type=LogAppendTime retention.ms=86400000, and remove "
        "min.compaction.lag.ms retention.bytes"
    )


@pytest.mark.parametrize(("replicas", "kept"), [(3, True), (2, True), (1, False), (None, False)])
def test_as_many_replicas_are_required_as_there_are(replicas: int | None, kept: bool) -> None:
    settings = created_settings({"min.insync.replicas": "2"}, replicas)
    assert (settings.now.get("min.insync.replicas"), settings.later.get("min.insync.replicas")) == (
        ("2", None) if kept else (None, "2")
    )


def test_settings_of_the_old_cluster_are_left_out() -> None:
    had = {
        "leader.replication.throttled.replicas": "0:1",
        "follower.replication.throttled.replicas": "0:2",
        "remote.storage.enable": "true",
        "local.retention.ms": "5",
    }
    assert created_settings(had, 1) == (KEEP, dict.fromkeys(KEEP))
    assert created_settings({}, None) == (KEEP, dict.fromkeys(KEEP))
