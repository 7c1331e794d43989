"""TxnOffsetCommit (API key 28): offsets of a group that count once a transaction is committed.

Version 3 and later name the member, and are refused for one that is not in the group any more (KIP-447).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import (
    GROUP_ID,
    TOPIC_NAME,
    commit_results,
    group_instance_id,
    offsets_to_commit,
    throttle_time,
)
from consumerd.wire.v08.schema import INT16, INT32, INT64, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import TxnOffsetCommitRequest, TxnOffsetCommitResponse

TXN_OFFSET_COMMIT: Api[TxnOffsetCommitRequest, TxnOffsetCommitResponse] = Api(
    key=28,
    name="TxnOffsetCommit",
    versions=(0, 5),
    flexible=3,
    request=(
        Field("transactional_id", STRING, "The producer's transactional id."),
        GROUP_ID,
        Field("producer_id", INT64, "The producer's id."),
        Field("producer_epoch", INT16, "The producer's epoch."),
        Field("generation_id", INT32, "The group's generation, -1 for none.", since=3, default=-1),
        Field("member_id", STRING, "Id that the coordinator gave to the member.", since=3, default=""),
        group_instance_id(since=3),
        offsets_to_commit(TOPIC_NAME, epoch_since=2),
    ),
    response=(throttle_time(since=0), commit_results(TOPIC_NAME)),
)
