"""ConsumerGroupDescribe (API key 69): groups of the consumer protocol (KIP-848), unknown to DescribeGroups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import (
    GROUP_ID,
    array,
    authorized_operations,
    error_code,
    error_message,
    include_authorized_operations,
    throttle_time,
    topic_id,
)
from consumerd.wire.v08.schema import ARRAY, INT8, INT32, STRING, STRUCT, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse


def _assignment(name: str, what: str) -> Field:
    topics = array(
        "topic_partitions",
        "By topics.",
        topic_id(since=0),
        Field("topic_name", STRING, "Name of the topic."),
        Field("partitions", ARRAY, "Numbers of partitions.", of=INT32),
    )
    return Field(name, STRUCT, what, of=(topics,))


CONSUMER_GROUP_DESCRIBE: Api[ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse] = Api(
    key=69,
    name="ConsumerGroupDescribe",
    versions=(0, 1),
    flexible=0,
    request=(Field("group_ids", ARRAY, "Names of the groups.", of=STRING), include_authorized_operations(since=0)),
    response=(
        throttle_time(since=0),
        array(
            "groups",
            "The groups.",
            error_code(),
            error_message(since=0),
            GROUP_ID,
            Field("group_state", STRING, "Empty, Assigning, Reconciling, Stable or Dead; empty with an error."),
            Field("group_epoch", INT32, "Counts changes of members and of what they want."),
            Field("assignment_epoch", INT32, "The group epoch of the last assignment."),
            Field("assignor_name", STRING, "The way of assigning."),
            array(
                "members",
                "Its members.",
                Field("member_id", STRING, "Id of the member."),
                Field("instance_id", STRING, "The lasting name of a static member.", nullable=0, default=None),
                Field("rack_id", STRING, "Where it is.", nullable=0, default=None),
                Field("member_epoch", INT32, "The assignment epoch that it has come to."),
                Field("client_id", STRING, "Client id with which it joined."),
                Field("client_host", STRING, "Address from which it joined."),
                Field("subscribed_topic_names", ARRAY, "Topics that it wants, by name.", of=STRING),
                Field(
                    "subscribed_topic_regex",
                    STRING,
                    "Topics that it wants, by a pattern of RE2; null for none.",
                    nullable=0,
                    default=None,
                ),
                _assignment("assignment", "What it has."),
                _assignment("target_assignment", "What it is to have."),
                Field(
                    "member_type",
                    INT8,
                    "0 for a member of the classic protocol, 1 of the consumer protocol, -1 unknown.",
                    since=1,
                    default=-1,
                    ignorable=True,
                ),
            ),
            authorized_operations("authorized_operations", "the group", since=0),
        ),
    ),
)
