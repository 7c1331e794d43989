"""DeleteTopics (API key 20): remove topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import array, error_code, error_message, throttle_time, topic_id
from consumerd.wire.v08.schema import ARRAY, INT32, NO_UUID, STRING, UUID, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import DeleteTopicsRequest, DeleteTopicsResponse

DELETE_TOPICS: Api[DeleteTopicsRequest, DeleteTopicsResponse] = Api(
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
        throttle_time(since=1),
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
