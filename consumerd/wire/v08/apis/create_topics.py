"""CreateTopics (API key 19): make topics. Brokers that are not the controller may answer error 41."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import (
    PARTITION_INDEX,
    TOPIC_NAME,
    array,
    error_code,
    error_message,
    throttle_time,
    topic_id,
)
from consumerd.wire.v08.schema import ARRAY, BOOLEAN, INT8, INT16, INT32, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import CreateTopicsRequest, CreateTopicsResponse

CREATE_TOPICS: Api[CreateTopicsRequest, CreateTopicsResponse] = Api(
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
        throttle_time(since=2),
        array(
            "topics",
            "The result for each topic.",
            TOPIC_NAME,
            topic_id(since=7),
            error_code(),
            error_message(since=1),
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
                "num_partitions", INT32, "Number of partitions, -1 for unknown.", since=5, default=-1, ignorable=True
            ),
            Field(
                "replication_factor", INT16, "Replicas of each, -1 for unknown.", since=5, default=-1, ignorable=True
            ),
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
