"""Error codes of answers: number, name, whether trying again can help, and what they mean.

Strategy: a table. Codes -1 to 43, their names and flags are the guide's (spec 002), some of which later documents name
otherwise. The others are those that brokers up to 4.x send. `refresh` is ours: the guide has clients fetch metadata
again when an error says that a broker no longer hosts the requested partition. A code that no table knows comes from a
newer broker; it is not worth a retry, because nothing says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """`code`, `name`, `retriable`: trying again can help; `text`: what it means; `refresh`: fetch metadata first."""

    code: int
    name: str
    retriable: bool
    text: str
    refresh: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.code}): {self.text}"


_AGAIN = True
_FINAL = False

#: code, name, retriable, text
_TABLE: tuple[tuple[int, str, bool, str], ...] = (
    (-1, "UNKNOWN", _FINAL, "the broker failed unexpectedly; see its log"),
    (0, "NONE", _FINAL, "no error"),
    (1, "OFFSET_OUT_OF_RANGE", _FINAL, "the offset is before the partition's start or beyond its end"),
    (2, "CORRUPT_MESSAGE", _AGAIN, "a message is corrupt: its checksum, size or content is invalid"),
    (3, "UNKNOWN_TOPIC_OR_PARTITION", _AGAIN, "the broker has no such topic or partition"),
    (4, "INVALID_FETCH_SIZE", _FINAL, "the fetch size is invalid"),
    (5, "LEADER_NOT_AVAILABLE", _AGAIN, "the partition has no leader at the moment"),
    (6, "NOT_LEADER_FOR_PARTITION", _AGAIN, "another broker leads the partition"),
    (7, "REQUEST_TIMED_OUT", _AGAIN, "the request timed out at the broker"),
    (8, "BROKER_NOT_AVAILABLE", _FINAL, "the broker is not available"),
    (9, "REPLICA_NOT_AVAILABLE", _FINAL, "a replica of the partition is not available"),
    (
        10,
        "MESSAGE_TOO_LARGE",
        _FINAL,
        "a message is larger than the brokers (message.max.bytes) or the topic (max.message.bytes) accept",
    ),
    (11, "STALE_CONTROLLER_EPOCH", _FINAL, "another broker has become the controller"),
    (12, "OFFSET_METADATA_TOO_LARGE", _FINAL, "the text committed with an offset is too long"),
    (13, "NETWORK_EXCEPTION", _AGAIN, "the connection ended before the response"),
    (14, "GROUP_LOAD_IN_PROGRESS", _AGAIN, "the coordinator has just started, and is not ready yet"),
    (15, "GROUP_COORDINATOR_NOT_AVAILABLE", _AGAIN, "the group has no coordinator at the moment"),
    (16, "NOT_COORDINATOR_FOR_GROUP", _AGAIN, "another broker coordinates the group"),
    (17, "INVALID_TOPIC_EXCEPTION", _FINAL, "the topic's name is invalid, or the topic is internal"),
    (18, "RECORD_LIST_TOO_LARGE", _FINAL, "a message set is larger than a segment of the log"),
    (19, "NOT_ENOUGH_REPLICAS", _AGAIN, "fewer replicas are in sync than min.insync.replicas; nothing was written"),
    (20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", _AGAIN, "written, but to fewer replicas than min.insync.replicas"),
    (21, "INVALID_REQUIRED_ACKS", _FINAL, "acks must be 0, 1 or -1"),
    (22, "ILLEGAL_GENERATION", _FINAL, "the group is in another generation"),
    (23, "INCONSISTENT_GROUP_PROTOCOL", _FINAL, "the member shares no assignor or protocol type with the group"),
    (24, "INVALID_GROUP_ID", _FINAL, "the group's name is invalid"),
    (25, "UNKNOWN_MEMBER_ID", _FINAL, "the coordinator does not know the member, or no longer does"),
    (26, "INVALID_SESSION_TIMEOUT", _FINAL, "the session timeout is outside of group.min/max.session.timeout.ms"),
    (27, "REBALANCE_IN_PROGRESS", _FINAL, "the group is rebalancing: join again"),
    (28, "INVALID_COMMIT_OFFSET_SIZE", _FINAL, "the commit is too large"),
    (29, "TOPIC_AUTHORIZATION_FAILED", _FINAL, "the client is not authorized for this operation on the topic"),
    (30, "GROUP_AUTHORIZATION_FAILED", _FINAL, "the client is not authorized for this operation on the group"),
    (31, "CLUSTER_AUTHORIZATION_FAILED", _FINAL, "the client is not authorized for this operation on the cluster"),
    (32, "INVALID_TIMESTAMP", _FINAL, "a message's timestamp is too far from the broker's clock"),
    (33, "UNSUPPORTED_SASL_MECHANISM", _FINAL, "the broker does not support this SASL mechanism"),
    (34, "ILLEGAL_SASL_STATE", _FINAL, "the request is not allowed in this state of the SASL authentication"),
    (35, "UNSUPPORTED_VERSION", _FINAL, "the broker does not support this version of the API"),
    (36, "TOPIC_ALREADY_EXISTS", _FINAL, "a topic of this name already exists"),
    (37, "INVALID_PARTITIONS", _FINAL, "the number of partitions is invalid"),
    (38, "INVALID_REPLICATION_FACTOR", _FINAL, "the replication factor is below 1 or above the number of brokers"),
    (39, "INVALID_REPLICA_ASSIGNMENT", _FINAL, "the assignment of replicas is invalid"),
    (40, "INVALID_CONFIG", _FINAL, "a setting is invalid"),
    (41, "NOT_CONTROLLER", _AGAIN, "another broker is the controller"),
    (
        42,
        "INVALID_REQUEST",
        _FINAL,
        "the request is inconsistent or not supported by this version of the broker; see its log",
    ),
    (43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", _FINAL, "the topic's message format does not support the operation"),
    (44, "POLICY_VIOLATION", _FINAL, "the request violates a policy of the cluster"),
    (45, "OUT_OF_ORDER_SEQUENCE_NUMBER", _FINAL, "a producer's batch does not follow the one before it"),
    (46, "DUPLICATE_SEQUENCE_NUMBER", _FINAL, "a producer's batch was already written"),
    (47, "INVALID_PRODUCER_EPOCH", _FINAL, "a newer producer uses this producer's id"),
    (48, "INVALID_TXN_STATE", _FINAL, "the operation is not allowed in this state of the transaction"),
    (49, "INVALID_PRODUCER_ID_MAPPING", _FINAL, "the producer's id is not that of its transactional id"),
    (50, "INVALID_TRANSACTION_TIMEOUT", _FINAL, "the transaction's timeout is longer than the broker allows"),
    (51, "CONCURRENT_TRANSACTIONS", _AGAIN, "the producer's previous transaction is not completed yet"),
    (52, "TRANSACTION_COORDINATOR_FENCED", _FINAL, "another broker has become the transaction's coordinator"),
    (53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", _FINAL, "the client is not authorized for the transactional id"),
    (54, "SECURITY_DISABLED", _FINAL, "the cluster has no access control"),
    (55, "OPERATION_NOT_ATTEMPTED", _FINAL, "not attempted, because another part of the request failed"),
    (56, "KAFKA_STORAGE_ERROR", _AGAIN, "the broker cannot use the disk that holds the partition"),
    (57, "LOG_DIR_NOT_FOUND", _FINAL, "the broker has no such log directory"),
    (58, "SASL_AUTHENTICATION_FAILED", _FINAL, "the credentials are wrong"),
    (59, "UNKNOWN_PRODUCER_ID", _FINAL, "the broker no longer knows the producer, because its messages were deleted"),
    (60, "REASSIGNMENT_IN_PROGRESS", _FINAL, "a reassignment of the partitions is in progress"),
    (61, "DELEGATION_TOKEN_AUTH_DISABLED", _FINAL, "delegation tokens are disabled"),
    (62, "DELEGATION_TOKEN_NOT_FOUND", _FINAL, "there is no such delegation token"),
    (63, "DELEGATION_TOKEN_OWNER_MISMATCH", _FINAL, "the delegation token belongs to another principal"),
    (64, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", _FINAL, "delegation tokens are not issued on this kind of connection"),
    (65, "DELEGATION_TOKEN_AUTHORIZATION_FAILED", _FINAL, "the client is not authorized for the delegation token"),
    (66, "DELEGATION_TOKEN_EXPIRED", _FINAL, "the delegation token has expired"),
    (67, "INVALID_PRINCIPAL_TYPE", _FINAL, "the kind of principal is not supported"),
    (68, "NON_EMPTY_GROUP", _FINAL, "the group has members"),
    (69, "GROUP_ID_NOT_FOUND", _FINAL, "the group does not exist"),
    (70, "FETCH_SESSION_ID_NOT_FOUND", _AGAIN, "the broker no longer knows the fetch session"),
    (71, "INVALID_FETCH_SESSION_EPOCH", _AGAIN, "the fetch is out of order in its fetch session"),
    (72, "LISTENER_NOT_FOUND", _AGAIN, "the leader has no listener of this name"),
    (73, "TOPIC_DELETION_DISABLED", _FINAL, "topic deletion is disabled at the brokers (delete.topic.enable)"),
    (74, "FENCED_LEADER_EPOCH", _AGAIN, "the client's leader epoch is older than the broker's"),
    (75, "UNKNOWN_LEADER_EPOCH", _AGAIN, "the client's leader epoch is newer than the broker's"),
    (76, "UNSUPPORTED_COMPRESSION_TYPE", _FINAL, "the request's version is too old for the codec"),
    (77, "STALE_BROKER_EPOCH", _FINAL, "the broker has registered again since"),
    (78, "OFFSET_NOT_AVAILABLE", _AGAIN, "the new leader does not know the end of the partition yet"),
    (79, "MEMBER_ID_REQUIRED", _FINAL, "the member must join again with the member id of this response"),
    (80, "PREFERRED_LEADER_NOT_AVAILABLE", _AGAIN, "the preferred leader is not available"),
    (81, "GROUP_MAX_SIZE_REACHED", _FINAL, "the group has reached its maximum number of members"),
    (82, "FENCED_INSTANCE_ID", _FINAL, "another member has this group.instance.id"),
    (83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", _AGAIN, "no replica is eligible as leader at the moment"),
    (84, "ELECTION_NOT_NEEDED", _AGAIN, "the partition already has its leader"),
    (85, "NO_REASSIGNMENT_IN_PROGRESS", _FINAL, "no reassignment of the partitions is in progress"),
    (86, "GROUP_SUBSCRIBED_TO_TOPIC", _FINAL, "the group subscribes to the topic whose offsets were to be deleted"),
    (87, "INVALID_RECORD", _FINAL, "the broker rejected a record as invalid"),
    (88, "UNSTABLE_OFFSET_COMMIT", _AGAIN, "offsets of the partition belong to a transaction that is not completed"),
    (89, "THROTTLING_QUOTA_EXCEEDED", _AGAIN, "a quota was exceeded"),
    (90, "PRODUCER_FENCED", _FINAL, "a newer producer uses the transactional id"),
    (91, "RESOURCE_NOT_FOUND", _FINAL, "the requested resource does not exist"),
    (92, "DUPLICATE_RESOURCE", _FINAL, "the request names a resource twice"),
    (93, "UNACCEPTABLE_CREDENTIAL", _FINAL, "a credential does not meet the rules"),
    (94, "INCONSISTENT_VOTER_SET", _FINAL, "the controllers do not agree on the set of voters"),
    (95, "INVALID_UPDATE_VERSION", _FINAL, "a version to update to is invalid"),
    (96, "FEATURE_UPDATE_FAILED", _FINAL, "the features could not be changed"),
    (97, "PRINCIPAL_DESERIALIZATION_FAILURE", _FINAL, "the controller cannot read the principal of the request"),
    (98, "SNAPSHOT_NOT_FOUND", _FINAL, "there is no such snapshot"),
    (99, "POSITION_OUT_OF_RANGE", _FINAL, "the position is beyond the snapshot's end"),
    (100, "UNKNOWN_TOPIC_ID", _AGAIN, "the broker has no topic of this id"),
    (101, "DUPLICATE_BROKER_REGISTRATION", _FINAL, "another broker is registered with this id"),
    (102, "BROKER_ID_NOT_REGISTERED", _FINAL, "no broker is registered with this id"),
    (103, "INCONSISTENT_TOPIC_ID", _AGAIN, "the log's topic id is not that of the request"),
    (104, "INCONSISTENT_CLUSTER_ID", _FINAL, "the cluster's id is not that of the request"),
    (105, "TRANSACTIONAL_ID_NOT_FOUND", _FINAL, "there is no such transactional id"),
    (106, "FETCH_SESSION_TOPIC_ID_ERROR", _AGAIN, "the fetch session mixes topic names and ids"),
    (107, "INELIGIBLE_REPLICA", _FINAL, "the replica is not eligible for the in-sync set"),
    (108, "NEW_LEADER_ELECTED", _FINAL, "the change of the in-sync replicas elected a new leader"),
    (109, "OFFSET_MOVED_TO_TIERED_STORAGE", _FINAL, "the offset is in remote storage"),
    (110, "FENCED_MEMBER_EPOCH", _FINAL, "the member was fenced and must join again"),
    (111, "UNRELEASED_INSTANCE_ID", _FINAL, "another member of the group still uses this instance id"),
    (112, "UNSUPPORTED_ASSIGNOR", _FINAL, "the group does not support the assignor"),
    (113, "STALE_MEMBER_EPOCH", _FINAL, "the member's epoch is not the current one"),
    (114, "MISMATCHED_ENDPOINT_TYPE", _FINAL, "a request for controllers was sent to a broker, or the reverse"),
    (115, "UNSUPPORTED_ENDPOINT_TYPE", _FINAL, "there is no such kind of endpoint"),
    (116, "UNKNOWN_CONTROLLER_ID", _FINAL, "there is no such controller"),
    (117, "UNKNOWN_SUBSCRIPTION_ID", _FINAL, "the broker does not know the subscription to telemetry"),
    (118, "TELEMETRY_TOO_LARGE", _FINAL, "the telemetry is larger than the broker accepts"),
    (119, "INVALID_REGISTRATION", _FINAL, "the broker's registration is invalid"),
    (120, "TRANSACTION_ABORTABLE", _FINAL, "the transaction failed and has to be aborted"),
    (121, "INVALID_RECORD_STATE", _FINAL, "the record cannot be acknowledged now"),
    (122, "SHARE_SESSION_NOT_FOUND", _AGAIN, "the broker no longer knows the share session"),
    (123, "INVALID_SHARE_SESSION_EPOCH", _AGAIN, "the request is out of order in its share session"),
    (124, "FENCED_STATE_EPOCH", _FINAL, "the epoch of the share group's state is not the current one"),
    (125, "INVALID_VOTER_KEY", _FINAL, "the voter's key is not that of the replica"),
    (126, "DUPLICATE_VOTER", _FINAL, "the voter already exists"),
    (127, "VOTER_NOT_FOUND", _FINAL, "there is no such voter"),
    (128, "INVALID_REGULAR_EXPRESSION", _FINAL, "the regular expression is invalid"),
    (129, "REBOOTSTRAP_REQUIRED", _FINAL, "the client's view of the cluster is stale: bootstrap again"),
    (130, "STREAMS_INVALID_TOPOLOGY", _FINAL, "the streams topology is invalid"),
    (131, "STREAMS_INVALID_TOPOLOGY_EPOCH", _FINAL, "the epoch of the streams topology is invalid"),
    (132, "STREAMS_TOPOLOGY_FENCED", _FINAL, "the epoch of the streams topology is outdated"),
    (133, "SHARE_SESSION_LIMIT_REACHED", _AGAIN, "the broker has reached its maximum number of share sessions"),
)

#: Codes after which the broker is not, or may not be, the right one any more.
_REFRESH = frozenset({3, 5, 6, 9, 13, 56, 72, 74, 75, 80, 83, 84, 100, 103, 129})

#: All that is known of each code.
ERRORS = {code: ErrorInfo(code, name, retriable, text, code in _REFRESH) for code, name, retriable, text in _TABLE}


class ErrorCode(IntEnum):
    """The codes on which a client acts. All others are read with `error_info`."""

    UNKNOWN = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_FOR_PARTITION = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    GROUP_LOAD_IN_PROGRESS = 14
    GROUP_COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR_FOR_GROUP = 16
    RECORD_LIST_TOO_LARGE = 18
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    NOT_CONTROLLER = 41
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_PRODUCER_ID_MAPPING = 49
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129


def error_info(code: int) -> ErrorInfo:
    """Return the description of `code`; an unknown one is described as unknown and not retriable."""
    known = ERRORS.get(code)
    return known or ErrorInfo(code, f"ERROR_{code}", _FINAL, "an error code of a newer broker")
