"""Groups that brokers coordinate: membership by both protocols, and the APIs that show and delete groups."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import (
    GROUP_ID,
    array,
    authorized_operations,
    error_code,
    error_message,
    group_instance_id,
    ignorable,
    include_authorized_operations,
    optional_string,
    throttle_time,
    topic_id,
)
from consumerd.wire.v08.schema import ARRAY, BOOLEAN, BYTES, INT8, INT32, STRING, STRUCT, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08 import message_types as bodies


_ADDRESS = (
    Field("node_id", INT32, "Broker id, -1 with an error."),
    Field("host", STRING, "Host at which it is reached."),
    Field("port", INT32, "Port at which it is reached."),
)

#: FindCoordinator (API key 10; in the guide GroupCoordinator): which broker coordinates a group.
#:
#: Version 4 and later ask for several at once.
FIND_COORDINATOR: Api[bodies.FindCoordinatorRequest, bodies.FindCoordinatorResponse] = Api(
    key=10,
    name="FindCoordinator",
    alias="GroupCoordinator",
    versions=(0, 6),
    flexible=3,
    request=(
        Field("key", STRING, "Name of the group, or what else `key_type` says.", until=3),
        Field("key_type", INT8, "0: a group; 1: a transactional id; 2: a share group.", since=1, default=0),
        Field("coordinator_keys", ARRAY, "Names of the groups, or what else `key_type` says.", of=STRING, since=4),
    ),
    response=(
        throttle_time(since=1, obeyed=2),
        error_code(until=3),
        error_message(since=1, until=3),
        *(replace(field, until=3) for field in _ADDRESS),
        array(
            "coordinators",
            "The broker for each key.",
            Field("key", STRING, "The key that was asked for."),
            *_ADDRESS,
            error_code(),
            error_message(since=4),
            since=4,
        ),
    ),
)


#: JoinGroup (API key 11): become a member; answered when all have joined.
#:
#: The broker picks a protocol that every member has, and a leader, who gets the members and assigns (SyncGroup). From
#: version 4 on a new member is first answered MEMBER_ID_REQUIRED (79) with the id to join by.
JOIN_GROUP: Api[bodies.JoinGroupRequest, bodies.JoinGroupResponse] = Api(
    key=11,
    name="JoinGroup",
    versions=(0, 9),
    flexible=6,
    request=(
        GROUP_ID,
        Field("session_timeout_ms", INT32, "After so long without a heartbeat the member counts as dead, ms."),
        ignorable(
            "rebalance_timeout_ms",
            INT32,
            "How long the coordinator waits for members to join again, ms; in version 0 it is the session timeout.",
            since=1,
            default=-1,
        ),
        Field("member_id", STRING, "Id that the coordinator gave, empty for a new member."),
        group_instance_id(since=5),
        Field("protocol_type", STRING, "Kind of group: `consumer`."),
        array(
            "protocols",
            "Ways of assigning that the member knows, dearest first.",
            Field("name", STRING, "Name of the way."),
            Field("metadata", BYTES, "What the leader needs to know of the member: its subscription."),
        ),
        optional_string("reason", "Why it joins, for the broker's log, or null.", since=8),
    ),
    response=(
        throttle_time(since=2, obeyed=3),
        error_code(),
        Field("generation_id", INT32, "The group's generation.", default=-1),
        optional_string("protocol_type", "Kind of group, or null.", since=7),
        Field("protocol_name", STRING, "The way of assigning that was picked; null (v7+) with an error.", nullable=7),
        Field("leader", STRING, "Member id of the leader."),
        Field("skip_assignment", BOOLEAN, "Whether the leader shall not assign.", since=9, default=False),
        Field("member_id", STRING, "Id that the coordinator gave."),
        array(
            "members",
            "For the leader: all members.",
            Field("member_id", STRING, "Id of the member."),
            group_instance_id(since=5, ignorable=True),
            Field("metadata", BYTES, "Its metadata for the way that was picked."),
        ),
    ),
)


#: SyncGroup (API key 14): the leader gives everybody's assignment, each member gets its own.
SYNC_GROUP: Api[bodies.SyncGroupRequest, bodies.SyncGroupResponse] = Api(
    key=14,
    name="SyncGroup",
    versions=(0, 5),
    flexible=4,
    request=(
        GROUP_ID,
        Field("generation_id", INT32, "The group's generation."),
        Field("member_id", STRING, "Id that the coordinator gave."),
        group_instance_id(since=3),
        optional_string("protocol_type", "Kind of group, or null.", since=5),
        optional_string("protocol_name", "The way of assigning that was picked, or null.", since=5),
        array(
            "assignments",
            "From the leader: who gets what; empty from others.",
            Field("member_id", STRING, "Id of the member."),
            Field("assignment", BYTES, "What it gets."),
        ),
    ),
    response=(
        throttle_time(since=1, obeyed=2),
        error_code(),
        optional_string("protocol_type", "Kind of group, or null.", since=5),
        optional_string("protocol_name", "The way of assigning that was picked, or null.", since=5),
        Field("assignment", BYTES, "What this member gets."),
    ),
)


#: Heartbeat (API key 12): stay a member, and learn of rebalances.
HEARTBEAT: Api[bodies.HeartbeatRequest, bodies.HeartbeatResponse] = Api(
    key=12,
    name="Heartbeat",
    versions=(0, 4),
    flexible=4,
    request=(
        GROUP_ID,
        Field("generation_id", INT32, "The group's generation as the member knows it."),
        Field("member_id", STRING, "Id that the coordinator gave."),
        group_instance_id(since=3),
    ),
    response=(
        throttle_time(since=1, obeyed=2),
        error_code("0, REBALANCE_IN_PROGRESS (27), or why it is not a member any more."),
    ),
)


#: LeaveGroup (API key 13): end a membership. Version 3 and later end several at once, also those of others.
LEAVE_GROUP: Api[bodies.LeaveGroupRequest, bodies.LeaveGroupResponse] = Api(
    key=13,
    name="LeaveGroup",
    versions=(0, 5),
    flexible=4,
    request=(
        GROUP_ID,
        Field("member_id", STRING, "Id that the coordinator gave.", until=2),
        array(
            "members",
            "Who leaves.",
            Field("member_id", STRING, "Id that the coordinator gave; may be empty with a `group_instance_id`."),
            group_instance_id(since=3),
            optional_string("reason", "Why, for the broker's log, or null.", since=5),
            since=3,
        ),
    ),
    response=(
        throttle_time(since=1, obeyed=2),
        error_code(),
        array(
            "members",
            "The result for each member.",
            Field("member_id", STRING, "Id of the member."),
            group_instance_id(since=3),
            error_code(),
            since=3,
            default=(),
        ),
    ),
)


_PARTITIONS = (topic_id(since=0), Field("partitions", ARRAY, "Numbers of partitions.", of=INT32))

#: ConsumerGroupHeartbeat (API key 68): join a group of KIP-848, stay its member, get partitions, and leave.
CONSUMER_GROUP_HEARTBEAT: Api[bodies.ConsumerGroupHeartbeatRequest, bodies.ConsumerGroupHeartbeatResponse] = Api(
    key=68,
    name="ConsumerGroupHeartbeat",
    versions=(0, 1),
    flexible=0,
    request=(
        GROUP_ID,
        Field("member_id", STRING, "Id that the member chose (since v1), or that the coordinator gave."),
        Field("member_epoch", INT32, "The member's epoch; 0 to join, -1 to leave, -2 to leave for a while (static)."),
        Field("instance_id", STRING, "The lasting name of a static member, or null.", nullable=0, default=None),
        Field("rack_id", STRING, "Rack of the member, or null.", nullable=0, default=None),
        Field(
            "rebalance_timeout_ms",
            INT32,
            "For how long the coordinator waits for revoked partitions, ms; -1: as before.",
            default=-1,
        ),
        Field(
            "subscribed_topic_names",
            ARRAY,
            "Topics to consume, by name, or null: as before.",
            of=STRING,
            nullable=0,
            default=None,
        ),
        Field(
            "subscribed_topic_regex",
            STRING,
            "Topics to consume, by a pattern of RE2, or null: as before.",
            since=1,
            nullable=1,
            default=None,
        ),
        Field("server_assignor", STRING, "The coordinator's way of assigning, or null.", nullable=0, default=None),
        array(
            "topic_partitions",
            "What the member owns, by topic, or null: as before.",
            *_PARTITIONS,
            nullable=0,
            default=None,
        ),
    ),
    response=(
        throttle_time(since=0, obeyed=0),
        error_code(),
        error_message(since=0),
        Field("member_id", STRING, "Id that the coordinator gave, or null.", nullable=0, default=None),
        Field("member_epoch", INT32, "The member's epoch."),
        Field("heartbeat_interval_ms", INT32, "Time between heartbeats, ms."),
        Field(
            "assignment",
            STRUCT,
            "What the member is to own, or null: as before.",
            of=(array("topic_partitions", "By topics.", *_PARTITIONS),),
            nullable=0,
            default=None,
        ),
    ),
)


#: ListGroups (API key 16): the groups that this broker coordinates.
LIST_GROUPS: Api[bodies.ListGroupsRequest, bodies.ListGroupsResponse] = Api(
    key=16,
    name="ListGroups",
    versions=(0, 5),
    flexible=3,
    request=(
        Field("states_filter", ARRAY, "States of the groups to return; empty for all.", of=STRING, since=4, default=()),
        Field("types_filter", ARRAY, "Types of the groups to return; empty for all.", of=STRING, since=5, default=()),
    ),
    response=(
        throttle_time(since=1, obeyed=2),
        error_code(),
        array(
            "groups",
            "The groups.",
            GROUP_ID,
            Field("protocol_type", STRING, "Kind of group; empty where only offsets are stored."),
            ignorable("group_state", STRING, "State of the group.", since=4, default=""),
            ignorable("group_type", STRING, "Type of the group.", since=5, default=""),
        ),
    ),
)


#: DescribeGroups (API key 15): state and members of groups that this broker coordinates.
DESCRIBE_GROUPS: Api[bodies.DescribeGroupsRequest, bodies.DescribeGroupsResponse] = Api(
    key=15,
    name="DescribeGroups",
    versions=(0, 6),
    flexible=5,
    request=(Field("groups", ARRAY, "Names of the groups.", of=STRING), include_authorized_operations(since=3)),
    response=(
        throttle_time(since=1, obeyed=2),
        array(
            "groups",
            "The groups.",
            error_code(),
            error_message(since=6),
            GROUP_ID,
            Field(
                "group_state", STRING, "Dead, Empty, Stable, AwaitingSync or PreparingRebalance; empty with an error."
            ),
            Field("protocol_type", STRING, "Kind of group; empty where nobody is in it."),
            Field("protocol_data", STRING, "The way of assigning; empty unless Stable."),
            array(
                "members",
                "Its members.",
                Field("member_id", STRING, "Id that the coordinator gave."),
                group_instance_id(since=4, ignorable=True),
                Field("client_id", STRING, "Client id with which it joined."),
                Field("client_host", STRING, "Address from which it joined."),
                Field("member_metadata", BYTES, "Its subscription; empty unless the group is Stable."),
                Field("member_assignment", BYTES, "What it was given; empty unless the group is Stable."),
            ),
            authorized_operations("authorized_operations", "the group", since=3),
        ),
    ),
)


def _assignment(name: str, what: str) -> Field:
    topics = array(
        "topic_partitions",
        "By topics.",
        topic_id(since=0),
        Field("topic_name", STRING, "Name of the topic."),
        Field("partitions", ARRAY, "Numbers of partitions.", of=INT32),
    )
    return Field(name, STRUCT, what, of=(topics,))


#: ConsumerGroupDescribe (API key 69): groups of the consumer protocol (KIP-848), unknown to DescribeGroups.
CONSUMER_GROUP_DESCRIBE: Api[bodies.ConsumerGroupDescribeRequest, bodies.ConsumerGroupDescribeResponse] = Api(
    key=69,
    name="ConsumerGroupDescribe",
    versions=(0, 1),
    flexible=0,
    request=(Field("group_ids", ARRAY, "Names of the groups.", of=STRING), include_authorized_operations(since=0)),
    response=(
        throttle_time(since=0, obeyed=0),
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
                optional_string("subscribed_topic_regex", "Topics that it wants: a pattern of RE2, or null.", since=0),
                _assignment("assignment", "What it has."),
                _assignment("target_assignment", "What it is to have."),
                ignorable(
                    "member_type",
                    INT8,
                    "0 for a member of the classic protocol, 1 of the consumer protocol, -1 unknown.",
                    since=1,
                    default=-1,
                ),
            ),
            authorized_operations("authorized_operations", "the group", since=0),
        ),
    ),
)


#: DeleteGroups (API key 42, since 1.1): remove groups without members, and all that they committed.
DELETE_GROUPS: Api[bodies.DeleteGroupsRequest, bodies.DeleteGroupsResponse] = Api(
    key=42,
    name="DeleteGroups",
    versions=(0, 2),
    flexible=2,
    request=(Field("groups_names", ARRAY, "Names of the groups.", of=STRING),),
    response=(throttle_time(since=0, obeyed=1), array("results", "The result for each group.", GROUP_ID, error_code())),
)
