"""DescribeConfigs (API key 32, since 0.11): settings of topics and brokers, with the values that hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consumerd.wire.v08.apis.common import array, error_code, error_message, optional_string, throttle_time
from consumerd.wire.v08.schema import ARRAY, BOOLEAN, INT8, STRING, Api, Field

if TYPE_CHECKING:
    from consumerd.wire.v08.message_types import DescribeConfigsRequest, DescribeConfigsResponse

#: The resource types of topics and groups.
TOPIC, GROUP = 2, 32

DESCRIBE_CONFIGS: Api[DescribeConfigsRequest, DescribeConfigsResponse] = Api(
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
        throttle_time(since=0),
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
                Field(
                    "config_source",
                    INT8,
                    "Where the value comes from: 1 the topic, 5 a default; -1 for unknown.",
                    since=1,
                    default=-1,
                    ignorable=True,
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
                Field("config_type", INT8, "Its type; 0 for unknown.", since=3, default=0, ignorable=True),
                optional_string("documentation", "What it means, or null.", since=3),
            ),
        ),
    ),
)
