"""Metadata (API key 3): the brokers, the topics, and the leaders of their partitions.

An empty list of topics means all of them in version 0 and none later, where null means all. Naming a topic that does
not exist can create it, if the broker's configuration says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import (
    PARTITION_INDEX,
    array,
    authorized_operations,
    error_code,
    optional_string,
    throttle_time,
    topic_id,
)
from consumerd.wire.v08.schema import ARRAY, BOOLEAN, INT16, INT32, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import MetadataRequest, MetadataResponse

_PARTITION = (
    Field("error_code", INT16, "What is wrong with the partition, 0 for nothing."),
    PARTITION_INDEX,
    Field("leader_id", INT32, "Broker id of the leader, -1 for none."),
    Field("leader_epoch", INT32, "Epoch of the leader, -1 for unknown.", since=7, default=-1, ignorable=True),
    Field("replica_nodes", ARRAY, "Broker ids of all replicas.", of=INT32),
    Field("isr_nodes", ARRAY, "Broker ids of the replicas in sync.", of=INT32),
    Field(
        "offline_replicas",
        ARRAY,
        "Broker ids of the replicas out of reach.",
        of=INT32,
        since=5,
        default=(),
        ignorable=True,
    ),
)

METADATA: Api[MetadataRequest, MetadataResponse] = Api(
    key=3,
    name="Metadata",
    versions=(0, 13),
    flexible=9,
    request=(
        array(
            "topics",
            "The topics (see above).",
            topic_id("The topic's id, where it is asked for by id.", since=10),
            Field("name", STRING, "Name of the topic; null where it is asked for by id.", nullable=10),
            nullable=1,
        ),
        Field(
            "allow_auto_topic_creation",
            BOOLEAN,
            "Whether topics that do not exist may be created.",
            since=4,
            default=True,
        ),
        Field(
            "include_cluster_authorized_operations",
            BOOLEAN,
            "Whether to say what this client may do in the cluster.",
            since=8,
            until=10,
            default=False,
        ),
        Field(
            "include_topic_authorized_operations",
            BOOLEAN,
            "Whether to say what this client may do with the topics.",
            since=8,
            default=False,
        ),
    ),
    response=(
        throttle_time(since=3),
        array(
            "brokers",
            "All brokers that are alive.",
            Field("node_id", INT32, "Broker id."),
            Field("host", STRING, "Host at which it is reached."),
            Field("port", INT32, "Port at which it is reached."),
            optional_string("rack", "Its rack, or null.", since=1),
        ),
        optional_string("cluster_id", "Id of the cluster, or null.", since=2),
        Field("controller_id", INT32, "Broker id of the controller, -1 for none.", since=1, default=-1, ignorable=True),
        array(
            "topics",
            "The topics.",
            Field("error_code", INT16, "What is wrong with the topic, 0 for nothing."),
            Field("name", STRING, "Name of the topic; null where an id is unknown.", nullable=12),
            topic_id("The topic's id; zeros where a name is unknown.", since=10),
            Field(
                "is_internal", BOOLEAN, "Whether it is one of the brokers' own.", since=1, default=False, ignorable=True
            ),
            array("partitions", "Its partitions.", *_PARTITION),
            authorized_operations("topic_authorized_operations", "the topic", since=8),
        ),
        authorized_operations("cluster_authorized_operations", "the cluster", since=8, until=10),
        error_code("The error of the whole request, 0 for none.", since=13),
    ),
)
