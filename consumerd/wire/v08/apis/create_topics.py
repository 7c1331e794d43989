"""CreateTopics (API key 19): make topics. Brokers that are not the controller may answer error 41."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import error_code, throttle_time, topic_id
from consumerd.wire.v08.schema import ARRAY, BOOLEAN, INT8, INT16, INT32, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import CreateTopicsRequest, CreateTopicsResponse

CREATE_TOPICS: Api[CreateTopicsRequest, CreateTopicsResponse] = Api(
    key=19,
    name="CreateTopics",
    versions=(0, 7),
    flexible=5,
    request=(
        Field(
            "topics",
            ARRAY,
            "The topics, each of them once.",
            of=(
                Field("name", STRING, "Name of the topic."),
                Field(
                    "num_partitions", INT32, "Number of partitions; -1 with an assignment, or (v4+) for the default."
                ),
                Field(
                    "replication_factor", INT16, "Replicas of each; -1 with an assignment, or (v4+) for the default."
                ),
                Field(
                    "assignments",
                    ARRAY,
                    "Which brokers hold what, where it is not left to Kafka.",
                    of=(
                        Field("partition_index", INT32, "Number of the partition."),
                        Field(
                            "broker_ids",
                            ARRAY,
                            "Broker ids of its replicas; the first is the preferred leader.",
                            of=INT32,
                        ),
                    ),
                    default=(),
                ),
                Field(
                    "configs",
                    ARRAY,
                    "Settings of the topic.",
                    of=(
                        Field("name", STRING, "Name of the setting."),
                        Field("value", STRING, "Its value; later documents allow null.", nullable=1),
                    ),
                    default=(),
                ),
            ),
        ),
        Field("timeout_ms", INT32, "How long to wait until they are there, ms; 0 or less does not wait."),
        Field("validate_only", BOOLEAN, "Whether it is only checked, not done.", since=1, default=False),
    ),
    response=(
        throttle_time(since=2),
        Field(
            "topics",
            ARRAY,
            "The result for each topic.",
            of=(
                Field("name", STRING, "Name of the topic."),
                topic_id(since=7),
                error_code(),
                Field(
                    "error_message",
                    STRING,
                    "The error in the broker's words, or null.",
                    since=1,
                    nullable=1,
                    default=None,
                    ignorable=True,
                ),
                Field(
                    "topic_config_error_code",
                    INT16,
                    "Why `configs` is null; 0 where it is not.",
                    since=5,
                    tag=0,
                    default=0,
                    ignorable=True,
                ),
                Field(
                    "num_partitions",
                    INT32,
                    "Number of partitions, -1 for unknown.",
                    since=5,
                    default=-1,
                    ignorable=True,
                ),
                Field(
                    "replication_factor",
                    INT16,
                    "Replicas of each, -1 for unknown.",
                    since=5,
                    default=-1,
                    ignorable=True,
                ),
                Field(
                    "configs",
                    ARRAY,
                    "Settings of the topic, or null.",
                    of=(
                        Field("name", STRING, "Name of the setting."),
                        Field("value", STRING, "Its value, or null.", nullable=5),
                        Field("read_only", BOOLEAN, "Whether it cannot be changed."),
                        Field("config_source", INT8, "Where it comes from.", default=-1),
                        Field("is_sensitive", BOOLEAN, "Whether its value is hidden."),
                    ),
                    since=5,
                    nullable=5,
                    default=None,
                    ignorable=True,
                ),
            ),
        ),
    ),
)
