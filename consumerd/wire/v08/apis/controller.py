"""Requests between brokers and their controller, until Kafka 3. Codecs only."""

from __future__ import annotations

from typing import Any

from consumerd.wire.v08.apis.common import array, error_code
from consumerd.wire.v08.schema import ARRAY, BOOLEAN, INT16, INT32, STRING, Api, Field

CONTROLLER = (
    Field("controller_id", INT32, "Broker id of the controller."),
    Field("controller_epoch", INT32, "Its epoch: brokers refuse an older one."),
)

TOPIC_PARTITION = (
    Field("topic", STRING, "Name of the topic."),
    Field("partition", INT32, "Number of the partition."),
)

PARTITION_STATE = (
    *TOPIC_PARTITION,
    Field("controller_epoch", INT32, "Epoch of the controller that decided it."),
    Field("leader", INT32, "Broker id of the leader."),
    Field("leader_epoch", INT32, "Epoch of the leader."),
    Field("isr", ARRAY, "Broker ids of the replicas in sync.", of=INT32),
    Field("zk_version", INT32, "Version of the state's node in ZooKeeper."),
    Field("replicas", ARRAY, "Broker ids of all replicas.", of=INT32),
)

PARTITION_RESULTS = (
    error_code(),
    array("partitions", "The result for each partition.", *TOPIC_PARTITION, error_code()),
)


#: LeaderAndIsr (API key 4): the controller names the leaders to brokers.
LEADER_AND_ISR: Api[Any, Any] = Api(
    key=4,
    name="LeaderAndIsr",
    versions=(0, 0),
    request=(
        *CONTROLLER,
        array("partition_states", "The new states.", *PARTITION_STATE),
        array(
            "live_leaders",
            "The brokers that lead any of them.",
            Field("id", INT32, "Broker id."),
            Field("host", STRING, "Host at which it is reached."),
            Field("port", INT32, "Port at which it is reached."),
        ),
    ),
    response=PARTITION_RESULTS,
)


#: StopReplica (API key 5): the controller tells a broker to stop being a replica.
STOP_REPLICA: Api[Any, Any] = Api(
    key=5,
    name="StopReplica",
    versions=(0, 0),
    request=(
        *CONTROLLER,
        Field("delete_partitions", BOOLEAN, "Whether the logs go, too."),
        array("partitions", "Which partitions.", *TOPIC_PARTITION),
    ),
    response=PARTITION_RESULTS,
)


#: UpdateMetadata (API key 6): the controller tells brokers what they answer to Metadata.
UPDATE_METADATA: Api[Any, Any] = Api(
    key=6,
    name="UpdateMetadata",
    versions=(0, 2),
    request=(
        *CONTROLLER,
        array("partition_states", "The state of each partition.", *PARTITION_STATE),
        array(
            "live_brokers",
            "All brokers that are alive.",
            Field("id", INT32, "Broker id."),
            Field("host", STRING, "Host at which it is reached.", until=0),
            Field("port", INT32, "Port at which it is reached.", until=0),
            array(
                "end_points",
                "Where it is reached.",
                Field("port", INT32, "Port at which it is reached."),
                Field("host", STRING, "Host at which it is reached."),
                Field("security_protocol_type", INT16, "0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."),
                since=1,
            ),
            Field("rack", STRING, "Its rack, or null.", since=2, nullable=2, default=None),
        ),
    ),
    response=(error_code(),),
)


#: ControlledShutdown (API key 7): a broker that stops asks the controller to move its leaderships.
#:
#: The guide has version 1 alone. Version 0 has the same fields; its request's header has no client id (golden notes).
CONTROLLED_SHUTDOWN: Api[Any, Any] = Api(
    key=7,
    name="ControlledShutdown",
    versions=(0, 1),
    request=(Field("broker_id", INT32, "Id of the broker that stops."),),
    response=(
        error_code(),
        array("partitions_remaining", "What it still leads.", *TOPIC_PARTITION),
    ),
)
