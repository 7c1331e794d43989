"""Topics and brokers: their metadata and settings; topics made and deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import (
    PARTITION_INDEX,
    TOPIC_NAME,
    array,
    authorized_operations,
    error_code,
    error_message,
    ignorable,
    optional_string,
    throttle_time,
    topic_id,
)
from consumerd.wire.v08.schema import ARRAY, BOOLEAN, INT8, INT16, INT32, NO_UUID, STRING, UUID, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08 import message_types as bodies


_PARTITION = (
    Field("error_code", INT16, "What is wrong with the partition, 0 for nothing."),
    PARTITION_INDEX,
    Field("leader_id", INT32, "Broker id of the leader, -1 for none."),
    ignorable("leader_epoch", INT32, "Epoch of the leader, -1 for unknown.", since=7, default=-1),
    Field("replica_nodes", ARRAY, "Broker ids of all replicas.", of=INT32),
    Field("isr_nodes", ARRAY, "Broker ids of the replicas in sync.", of=INT32),
    ignorable("offline_replicas", ARRAY, "Broker ids of the replicas out of reach.", of=INT32, since=5, default=()),
)

#: Metadata (API key 3): the brokers, the topics, and the leaders of their partitions.
#:
#: An empty list of topics means all of them in version 0 and none later, where null means all. Naming a topic that does
#: not exist can create it, if the broker's configuration says so.
METADATA: Api[bodies.MetadataRequest, bodies.MetadataResponse] = Api(
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
        throttle_time(since=3, obeyed=6),
        array(
            "brokers",
            "All brokers that are alive.",
            Field("node_id", INT32, "Broker id."),
            Field("host", STRING, "Host at which it is reached."),
            Field("port", INT32, "Port at which it is reached."),
            optional_string("rack", "Its rack, or null.", since=1),
        ),
        optional_string("cluster_id", "Id of the cluster, or null.", since=2),
        ignorable("controller_id", INT32, "Broker id of the controller, -1 for none.", since=1, default=-1),
        array(
            "topics",
            "The topics.",
            Field("error_code", INT16, "What is wrong with the topic, 0 for nothing."),
            Field("name", STRING, "Name of the topic; null where an id is unknown.", nullable=12),
            topic_id("The topic's id; zeros where a name is unknown.", since=10),
            ignorable("is_internal", BOOLEAN, "Whether it is one of the brokers' own.", since=1, default=False),
            array("partitions", "Its partitions.", *_PARTITION),
            authorized_operations("topic_authorized_operations", "the topic", since=8),
        ),
        authorized_operations("cluster_authorized_operations", "the cluster", since=8, until=10),
        error_code("The error of the whole request, 0 for none.", since=13),
    ),
)


#: CreateTopics (API key 19): make topics. Brokers that are not the controller may answer error 41.
CREATE_TOPICS: Api[bodies.CreateTopicsRequest, bodies.CreateTopicsResponse] = Api(
    key=19,
    name="CreateTopics",
    versions=(0, 7),
    flexible=5,
    request=(
        array(
            "topics",
            "The topics, each of them once.",
            TOPIC_NAME,
            Field("num_partitions", INT32, "Number of partitions; -1 with an assignment, or (v4+) for the default."),
            Field("replication_factor", INT16, "Replicas of each; -1 with an assignment, or (v4+) for the default."),
            array(
                "assignments",
                "Which brokers hold what, where it is not left to Kafka.",
                PARTITION_INDEX,
                Field("broker_ids", ARRAY, "Broker ids of its replicas; the first is the preferred leader.", of=INT32),
                default=(),
            ),
            array(
                "configs",
                "Settings of the topic.",
                Field("name", STRING, "Name of the setting."),
                Field("value", STRING, "Its value; later documents allow null.", nullable=1),
                default=(),
            ),
        ),
        Field("timeout_ms", INT32, "How long to wait until they are there, ms; 0 or less does not wait."),
        Field("validate_only", BOOLEAN, "Whether it is only checked, not done.", since=1, default=False),
    ),
    response=(
        throttle_time(since=2, obeyed=3),
        array(
            "topics",
            "The result for each topic.",
            TOPIC_NAME,
            topic_id(since=7),
            error_code(),
            error_message(since=1),
            ignorable(
                "topic_config_error_code", INT16, "Why `configs` is null; 0 where it is not.", since=5, tag=0, default=0
            ),
            ignorable("num_partitions", INT32, "Number of partitions, -1 for unknown.", since=5, default=-1),
            ignorable("replication_factor", INT16, "Replicas of each, -1 for unknown.", since=5, default=-1),
            array(
                "configs",
                "Settings of the topic, or null.",
                Field("name", STRING, "Name of the setting."),
                Field("value", STRING, "Its value, or null.", nullable=5),
                Field("read_only", BOOLEAN, "Whether it cannot be changed."),
                Field("config_source", INT8, "Where it comes from.", default=-1),
                Field("is_sensitive", BOOLEAN, "Whether its value is hidden."),
                since=5,
                nullable=5,
                default=None,
                ignorable=True,
            ),
        ),
    ),
)


#: DeleteTopics (API key 20): remove topics.
DELETE_TOPICS: Api[bodies.DeleteTopicsRequest, bodies.DeleteTopicsResponse] = Api(
    key=20,
    name="DeleteTopics",
    versions=(0, 6),
    flexible=4,
    request=(
        Field("topic_names", ARRAY, "Names of the topics.", of=STRING, until=5),
        array(
            "topics",
            "The topics, by name or id.",
            Field("name", STRING, "Name of the topic; null where it is named by id.", nullable=6, default=None),
            Field("topic_id", UUID, "The topic's id; zeros where it is named by name.", default=NO_UUID),
            since=6,
        ),
        Field("timeout_ms", INT32, "How long to wait until they are gone, ms; 0 or less does not wait."),
    ),
    response=(
        throttle_time(since=1, obeyed=2),
        array(
            "responses",
            "The result for each topic.",
            Field("name", STRING, "Name of the topic; null where an id is unknown.", nullable=6),
            topic_id(since=6),
            error_code(),
            error_message(since=5),
        ),
    ),
)


#: The resource types of topics and groups.
TOPIC, GROUP = 2, 32

#: DescribeConfigs (API key 32, since 0.11): settings of topics and brokers, with the values that hold.
DESCRIBE_CONFIGS: Api[bodies.DescribeConfigsRequest, bodies.DescribeConfigsResponse] = Api(
    key=32,
    name="DescribeConfigs",
    versions=(0, 4),
    flexible=4,
    request=(
        array(
            "resources",
            "The topics or brokers.",
            Field("resource_type", INT8, "2 for a topic, 4 for a broker, 32 for a group."),
            Field("resource_name", STRING, "Name of the topic or group, or the broker's id as text."),
            Field("configuration_keys", ARRAY, "Names of the settings; null for all.", of=STRING, nullable=0),
        ),
        Field("include_synonyms", BOOLEAN, "Whether to say where values come from.", since=1, default=False),
        Field("include_documentation", BOOLEAN, "Whether to say what settings mean.", since=3, default=False),
    ),
    response=(
        throttle_time(since=0, obeyed=2),
        array(
            "results",
            "By topics or brokers.",
            error_code(),
            error_message(since=0),
            Field("resource_type", INT8, "As in the request."),
            Field("resource_name", STRING, "As in the request."),
            array(
                "configs",
                "The settings.",
                Field("name", STRING, "Name of the setting."),
                Field("value", STRING, "Its value; null for a secret.", nullable=0),
                Field("read_only", BOOLEAN, "Whether it cannot be changed while the broker runs."),
                ignorable(
                    "config_source",
                    INT8,
                    "Where the value comes from: 1 the topic, 5 a default; -1 for unknown.",
                    since=1,
                    default=-1,
                ),
                Field("is_default", BOOLEAN, "Whether it is the default.", until=0, default=False),
                Field("is_sensitive", BOOLEAN, "Whether it is a secret."),
                array(
                    "synonyms",
                    "The values that would hold without those before them.",
                    Field("name", STRING, "Name of the setting there."),
                    Field("value", STRING, "Its value; null for a secret.", nullable=1),
                    Field("source", INT8, "Where it comes from."),
                    since=1,
                    default=(),
                    ignorable=True,
                ),
                ignorable("config_type", INT8, "Its type; 0 for unknown.", since=3, default=0),
                optional_string("documentation", "What it means, or null.", since=3),
            ),
        ),
    ),
)
