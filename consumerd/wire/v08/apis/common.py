"""Fields that many APIs share."""

from __future__ import annotations

from typing import Any

from consumerd.wire.v08.schema import (
    ARRAY,
    BOOLEAN,
    INT16,
    INT32,
    INT64,
    NO_UUID,
    STRING,
    STRUCT,
    UUID,
    Field,
    FieldType,
)

#: Operations that a client may do, where it did not ask for them.
NO_OPERATIONS = -(2**31)

GROUP_ID = Field("group_id", STRING, "Name of the group.")
TOPIC_NAME = Field("name", STRING, "Name of the topic.")
PARTITION_INDEX = Field("partition_index", INT32, "Number of the partition.")


def array(name: str, what: str, *of: Field, **options: Any) -> Field:
    """A repeated structure of the fields `of`; `options` as `Field` takes them."""
    return Field(name, ARRAY, what, of=of, **options)


def by_topic(
    what: str,
    *of: Field,
    topic: tuple[Field, ...] = (TOPIC_NAME,),
    names: tuple[str, str] = ("topics", "partitions"),
    **options: Any,
) -> Field:
    """`topics`, each with the fields `topic` and its `partitions`, which have the fields `of`."""
    topics, partitions = names
    parts = array(partitions, f"{what}, by partition.", *of)
    return array(topics, f"{what}, by topic.", *topic, parts, **options)


def ignorable(name: str, type: FieldType, what: str, *, default: Any, **options: Any) -> Field:  # noqa: A002
    """A field that is left out of versions without it. `options` as `Field` takes them."""
    return Field(name, type, what, default=default, ignorable=True, **options)


def throttle_time(*, since: int, obeyed: int | None = None) -> Field:
    """`throttle_time_ms`, in the answers of brokers that slow clients down. `obeyed`: as in `Field`."""
    return ignorable(
        "throttle_time_ms",
        INT32,
        "How long a quota holds the client back, ms; 0 without a violation. Brokers before 2.0 waited so long before "
        "they answered; later ones answer at once, and the client has to be silent for so long.",
        since=since,
        default=0,
        obeyed=obeyed,
    )


def error_code(what: str = "The error, 0 for none.", *, since: int = 0, until: int | None = None) -> Field:
    """`error_code`: see `consumerd.wire.v08.error_codes`."""
    return Field("error_code", INT16, what, since=since, until=until, default=0)


def optional_string(name: str, what: str, *, since: int, **options: Any) -> Field:
    """A string that may be null, and is left out of versions without it. `options` as `Field` takes them."""
    return ignorable(name, STRING, what, since=since, nullable=since, default=None, **options)


def error_message(*, since: int, until: int | None = None) -> Field:
    """`error_message`: the error in the broker's words, or null."""
    return optional_string("error_message", "The error in the broker's words, or null.", since=since, until=until)


def topic_id(what: str = "The topic's id.", *, since: int) -> Field:
    """`topic_id`: the topic's id where it stands beside or instead of the name."""
    return ignorable("topic_id", UUID, what, since=since, default=NO_UUID)


def current_leader_epoch(*, since: int) -> Field:
    """`current_leader_epoch`: a broker whose epoch is another one refuses the partition (KIP-320)."""
    return ignorable(
        "current_leader_epoch",
        INT32,
        "The leader's epoch as the reader knows it, for the broker to fence; -1 for unknown.",
        since=since,
        default=-1,
    )


def offsets_to_commit(*topic: Field, epoch_since: int, timestamp: tuple[Field, ...] = ()) -> Field:
    """`topics` of a commit. `topic`: the fields that name a topic; `timestamp`: those between offset and epoch."""
    return by_topic(
        "The offsets",
        PARTITION_INDEX,
        Field("committed_offset", INT64, "Offset of the next message to handle."),
        *timestamp,
        ignorable(
            "committed_leader_epoch",
            INT32,
            "Epoch of the last message handled, -1 for unknown.",
            since=epoch_since,
            default=-1,
        ),
        Field("committed_metadata", STRING, "Any text to keep with it, or null.", nullable=0, default=None),
        topic=topic,
    )


def commit_results(*topic: Field) -> Field:
    """`topics` of the answer to a commit. `topic`: the fields that name a topic."""
    return by_topic("The results", PARTITION_INDEX, error_code(), topic=topic)


def group_instance_id(*, since: int, ignorable: bool = False) -> Field:
    """`group_instance_id`: the lasting name of a static member."""
    return Field(
        "group_instance_id",
        STRING,
        "The lasting name of a static member, which keeps its place over restarts; null for a dynamic one.",
        since=since,
        nullable=since,
        default=None,
        ignorable=ignorable,
    )


def include_authorized_operations(*, since: int) -> Field:
    """Asks for `authorized_operations`."""
    return Field(
        "include_authorized_operations",
        BOOLEAN,
        "Whether to say what this client may do with them.",
        since=since,
        default=False,
    )


def authorized_operations(name: str, whose: str, *, since: int, until: int | None = None) -> Field:
    """A bit per operation of access control lists."""
    return ignorable(
        name,
        INT32,
        f"A bit for each operation that this client may do on {whose}; -2147483648 where it was not asked for.",
        since=since,
        until=until,
        default=NO_OPERATIONS,
    )


def optional_structure(name: str, what: str, *of: Field, since: int, tag: int) -> Field:
    """A tagged structure of the fields `of`, which may be absent, and is left out of versions without it."""
    return ignorable(name, STRUCT, what, of=of, since=since, tag=tag, default=None)


def current_leader(*, since: int, tag: int) -> Field:
    """`current_leader`: the present leader, sent with the error of a broker that is not."""
    return optional_structure(
        "current_leader",
        "Who leads the partition now, where this broker does not and knows; absent (null) otherwise.",
        Field("leader_id", INT32, "Broker id of the leader, -1 for unknown.", default=-1),
        Field("leader_epoch", INT32, "Epoch of the leader, -1 for unknown.", default=-1),
        since=since,
        tag=tag,
    )


def node_endpoints(*, since: int) -> Field:
    """`node_endpoints`: the addresses of the leaders that `current_leader` names."""
    return array(
        "node_endpoints",
        "Addresses of the leaders that `current_leader` names.",
        Field("node_id", INT32, "Broker id."),
        Field("host", STRING, "Host at which the broker is reached."),
        Field("port", INT32, "Port at which the broker is reached."),
        Field("rack", STRING, "Rack of the broker, or null.", nullable=0, default=None),
        since=since,
        tag=0,
        default=(),
        ignorable=True,
    )


#: The producer of a transaction.
TRANSACTIONAL_PRODUCER = (
    Field("transactional_id", STRING, "The producer's transactional id."),
    Field("producer_id", INT64, "The producer's id."),
    Field("producer_epoch", INT16, "The producer's epoch; the broker refuses an older one."),
)
