"""Fields that the controller's requests share."""

from __future__ import annotations

from consumerd.wire.v08.apis.common import array, error_code
from consumerd.wire.v08.schema import ARRAY, INT32, STRING, Field

CONTROLLER = (
    Field("controller_id", INT32, "Broker id of the controller."),
    Field("controller_epoch", INT32, "Its epoch: brokers refuse an older one."),
)

PARTITION_STATE = (
    Field("topic", STRING, "Name of the topic."),
    Field("partition", INT32, "Number of the partition."),
    Field("controller_epoch", INT32, "Epoch of the controller that decided it."),
    Field("leader", INT32, "Broker id of the leader."),
    Field("leader_epoch", INT32, "Epoch of the leader."),
    Field("isr", ARRAY, "Broker ids of the replicas in sync.", of=INT32),
    Field("zk_version", INT32, "Version of the state's node in ZooKeeper."),
    Field("replicas", ARRAY, "Broker ids of all replicas.", of=INT32),
)

PARTITION_RESULTS = (
    error_code(),
    array(
        "partitions",
        "The result for each partition.",
        Field("topic", STRING, "Name of the topic."),
        Field("partition", INT32, "Number of the partition."),
        error_code(),
    ),
)
