"""Fields that many APIs share."""

from __future__ import annotations

from consumerd.wire.v08.schema import BOOLEAN, INT16, INT32, INT64, NO_UUID, STRING, STRUCT, UUID, Field

#: Operations that a client may do, where it did not ask for them.
NO_OPERATIONS = -(2**31)


def throttle_time(*, since: int) -> Field:
    """`throttle_time_ms`, in the answers of brokers that slow clients down."""
    return Field(
        "throttle_time_ms",
        INT32,
        "How long a quota holds the client back, ms; 0 without a violation. Brokers before 2.0 waited so long before "
        "they answered; later ones answer at once, and the client has to be silent for so long.",
        since=since,
        default=0,
        ignorable=True,
    )


def error_code(what: str = "The error, 0 for none.", *, since: int = 0, until: int | None = None) -> Field:
    """`error_code`: see `consumerd.wire.v08.error_codes`."""
    return Field("error_code", INT16, what, since=since, until=until, default=0)


def error_message(what: str, *, since: int, until: int | None = None) -> Field:
    """`error_message`: the error in the broker's words, or null."""
    return Field("error_message", STRING, what, since=since, until=until, nullable=since, default=None, ignorable=True)


def topic_id(what: str = "The topic's id.", *, since: int) -> Field:
    """`topic_id`: the topic's id where it stands beside or instead of the name."""
    return Field("topic_id", UUID, what, since=since, default=NO_UUID, ignorable=True)


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
    return Field(
        name,
        INT32,
        f"A bit for each operation that this client may do on {whose}; -2147483648 where it was not asked for.",
        since=since,
        until=until,
        default=NO_OPERATIONS,
        ignorable=True,
    )


def current_leader(*, since: int, tag: int) -> Field:
    """`current_leader`: the present leader, sent with the error of a broker that is not."""
    return Field(
        "current_leader",
        STRUCT,
        "Who leads the partition now, where this broker does not and knows; absent (null) otherwise.",
        of=(
            Field("leader_id", INT32, "Broker id of the leader, -1 for unknown.", default=-1),
            Field("leader_epoch", INT32, "Epoch of the leader, -1 for unknown.", default=-1),
        ),
        since=since,
        tag=tag,
        default=None,
        ignorable=True,
    )


#: Address of a broker, in answers that name the leaders.
NODE_ENDPOINT = (
    Field("node_id", INT32, "Broker id."),
    Field("host", STRING, "Host at which the broker is reached."),
    Field("port", INT32, "Port at which the broker is reached."),
    Field("rack", STRING, "Rack of the broker, or null.", nullable=0, default=None),
)

#: The producer of a transaction.
TRANSACTIONAL_PRODUCER = (
    Field("transactional_id", STRING, "The producer's transactional id."),
    Field("producer_id", INT64, "The producer's id."),
    Field("producer_epoch", INT16, "The producer's epoch; the broker refuses an older one."),
)
