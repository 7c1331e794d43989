"""Error codes of answers: number, name, whether trying again can help, and what they mean.

Strategy: an enumeration that is the table. Codes -1 to 43, their names and flags are the guide's (spec 002), some of
which later documents name otherwise. The others are those that brokers up to 4.x send. `refresh` is ours: the guide has
clients fetch metadata again when an error says that a broker no longer hosts the requested partition. A code that no
table knows comes from a newer broker; it is not marked as worth a retry, because nothing says so. A daemon tries again
nevertheless, as after UNKNOWN (`is_unexplained`): nothing says that it is final either, and Kafka's own clients read
such a code as UNKNOWN.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Self

_AGAIN = True
_FINAL = False


class ErrorCode(IntEnum):
    """The codes: number, `retriable`: trying again can help, and `text`: what it means."""

    retriable: bool
    text: str

    def __new__(cls, code: int, retriable: bool, text: str) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable, member.text = retriable, text
        return member

    UNKNOWN = -1, _FINAL, "the broker failed unexpectedly; see its log"
    NONE = 0, _FINAL, "no error"
    OFFSET_OUT_OF_RANGE = 1, _FINAL, "the offset is before the partition's start or beyond its end"
    CORRUPT_MESSAGE = 2, _AGAIN, "a message is corrupt: its checksum, size or content is invalid"
    UNKNOWN_TOPIC_OR_PARTITION = 3, _AGAIN, "the broker has no such topic or partition"
    INVALID_FETCH_SIZE = 4, _FINAL, "the fetch size is invalid"
    LEADER_NOT_AVAILABLE = 5, _AGAIN, "the partition has no leader at the moment"
    NOT_LEADER_FOR_PARTITION = 6, _AGAIN, "another broker leads the partition"
    REQUEST_TIMED_OUT = 7, _AGAIN, "the request timed out at the broker"
    BROKER_NOT_AVAILABLE = 8, _FINAL, "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, _FINAL, "a replica of the partition is not available"
    MESSAGE_TOO_LARGE = (
        10,
        _FINAL,
        "a message is larger than the brokers (message.max.bytes) or the topic (max.message.bytes) accept",
    )
    STALE_CONTROLLER_EPOCH = 11, _FINAL, "another broker has become the controller"
    OFFSET_METADATA_TOO_LARGE = 12, _FINAL, "the text committed with an offset is too long"
    NETWORK_EXCEPTION = 13, _AGAIN, "the connection ended before the response"
    GROUP_LOAD_IN_PROGRESS = 14, _AGAIN, "the coordinator has just started, and is not ready yet"
    GROUP_COORDINATOR_NOT_AVAILABLE = 15, _AGAIN, "the group has no coordinator at the moment"
    NOT_COORDINATOR_FOR_GROUP = 16, _AGAIN, "another broker coordinates the group"
    INVALID_TOPIC_EXCEPTION = 17, _FINAL, "the topic's name is invalid, or the topic is internal"
    RECORD_LIST_TOO_LARGE = 18, _FINAL, "a message set is larger than a segment of the log"
    NOT_ENOUGH_REPLICAS = 19, _AGAIN, "fewer replicas are in sync than min.insync.replicas; nothing was written"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, _AGAIN, "written, but to fewer replicas than min.insync.replicas"
    INVALID_REQUIRED_ACKS = 21, _FINAL, "acks must be 0, 1 or -1"
    ILLEGAL_GENERATION = 22, _FINAL, "the group is in another generation"
    INCONSISTENT_GROUP_PROTOCOL = 23, _FINAL, "the member shares no assignor or protocol type with the group"
    INVALID_GROUP_ID = 24, _FINAL, "the group's name is invalid"
    UNKNOWN_MEMBER_ID = 25, _FINAL, "the coordinator does not know the member, or no longer does"
    INVALID_SESSION_TIMEOUT = 26, _FINAL, "the session timeout is outside of group.min/max.session.timeout.ms"
    REBALANCE_IN_PROGRESS = 27, _FINAL, "the group is rebalancing: join again"
    INVALID_COMMIT_OFFSET_SIZE = 28, _FINAL, "the commit is too large"
    TOPIC_AUTHORIZATION_FAILED = 29, _FINAL, "the client is not authorized for this operation on the topic"
    GROUP_AUTHORIZATION_FAILED = 30, _FINAL, "the client is not authorized for this operation on the group"
    CLUSTER_AUTHORIZATION_FAILED = 31, _FINAL, "the client is not authorized for this operation on the cluster"
    INVALID_TIMESTAMP = 32, _FINAL, "a message's timestamp is too far from the broker's clock"
    UNSUPPORTED_SASL_MECHANISM = 33, _FINAL, "the broker does not support this SASL mechanism"
    ILLEGAL_SASL_STATE = 34, _FINAL, "the request is not allowed in this state of the SASL authentication"
    UNSUPPORTED_VERSION = 35, _FINAL, "the broker does not support this version of the API"
    TOPIC_ALREADY_EXISTS = 36, _FINAL, "a topic of this name already exists"
    INVALID_PARTITIONS = 37, _FINAL, "the number of partitions is invalid"
    INVALID_REPLICATION_FACTOR = 38, _FINAL, "the replication factor is below 1 or above the number of brokers"
    INVALID_REPLICA_ASSIGNMENT = 39, _FINAL, "the assignment of replicas is invalid"
    INVALID_CONFIG = 40, _FINAL, "a setting is invalid"
    NOT_CONTROLLER = 41, _AGAIN, "another broker is the controller"
    INVALID_REQUEST = (
        42,
        _FINAL,
        "the request is inconsistent or not supported by this version of the broker; see its log",
    )
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, _FINAL, "the topic's message format does not support the operation"
    POLICY_VIOLATION = 44, _FINAL, "the request violates a policy of the cluster"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, _FINAL, "a producer's batch does not follow the one before it"
    DUPLICATE_SEQUENCE_NUMBER = 46, _FINAL, "a producer's batch was already written"
    INVALID_PRODUCER_EPOCH = 47, _FINAL, "a newer producer uses this producer's id, or its transaction timed out"
    INVALID_TXN_STATE = 48, _FINAL, "the operation is not allowed in this state of the transaction"
    INVALID_PRODUCER_ID_MAPPING = 49, _FINAL, "the producer's id is not that of its transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, _FINAL, "the transaction's timeout is longer than the broker allows"
    CONCURRENT_TRANSACTIONS = 51, _AGAIN, "the producer's previous transaction is not completed yet"
    TRANSACTION_COORDINATOR_FENCED = 52, _FINAL, "another broker has become the transaction's coordinator"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, _FINAL, "the client is not authorized for the transactional id"
    SECURITY_DISABLED = 54, _FINAL, "the cluster has no access control"
    OPERATION_NOT_ATTEMPTED = 55, _FINAL, "not attempted, because another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, _AGAIN, "the broker cannot use the disk that holds the partition"
    LOG_DIR_NOT_FOUND = 57, _FINAL, "the broker has no such log directory"
    SASL_AUTHENTICATION_FAILED = 58, _FINAL, "the credentials are wrong"
    UNKNOWN_PRODUCER_ID = 59, _FINAL, "the broker no longer knows the producer, because its messages were deleted"
    REASSIGNMENT_IN_PROGRESS = 60, _FINAL, "a reassignment of the partitions is in progress"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, _FINAL, "delegation tokens are disabled"
    DELEGATION_TOKEN_NOT_FOUND = 62, _FINAL, "there is no such delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, _FINAL, "the delegation token belongs to another principal"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, _FINAL, "delegation tokens are not issued on this kind of connection"
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, _FINAL, "the client is not authorized for the delegation token"
    DELEGATION_TOKEN_EXPIRED = 66, _FINAL, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, _FINAL, "the kind of principal is not supported"
    NON_EMPTY_GROUP = 68, _FINAL, "the group has members"
    GROUP_ID_NOT_FOUND = 69, _FINAL, "the group does not exist"
    FETCH_SESSION_ID_NOT_FOUND = 70, _AGAIN, "the broker no longer knows the fetch session"
    INVALID_FETCH_SESSION_EPOCH = 71, _AGAIN, "the fetch is out of order in its fetch session"
    LISTENER_NOT_FOUND = 72, _AGAIN, "the leader has no listener of this name"
    TOPIC_DELETION_DISABLED = 73, _FINAL, "topic deletion is disabled at the brokers (delete.topic.enable)"
    FENCED_LEADER_EPOCH = 74, _AGAIN, "the client's leader epoch is older than the broker's"
    UNKNOWN_LEADER_EPOCH = 75, _AGAIN, "the client's leader epoch is newer than the broker's"
    UNSUPPORTED_COMPRESSION_TYPE = 76, _FINAL, "the request's version is too old for the codec"
    STALE_BROKER_EPOCH = 77, _FINAL, "the broker has registered again since"
    OFFSET_NOT_AVAILABLE = 78, _AGAIN, "the new leader does not know the end of the partition yet"
    MEMBER_ID_REQUIRED = 79, _FINAL, "the member must join again with the member id of this response"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, _AGAIN, "the preferred leader is not available"
    GROUP_MAX_SIZE_REACHED = 81, _FINAL, "the group has reached its maximum number of members"
    FENCED_INSTANCE_ID = 82, _FINAL, "another member has this group.instance.id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, _AGAIN, "no replica is eligible as leader at the moment"
    ELECTION_NOT_NEEDED = 84, _AGAIN, "the partition already has its leader"
    NO_REASSIGNMENT_IN_PROGRESS = 85, _FINAL, "no reassignment of the partitions is in progress"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, _FINAL, "the group subscribes to the topic whose offsets were to be deleted"
    INVALID_RECORD = 87, _FINAL, "the broker rejected a record as invalid"
    UNSTABLE_OFFSET_COMMIT = 88, _AGAIN, "offsets of the partition belong to a transaction that is not completed"
    THROTTLING_QUOTA_EXCEEDED = 89, _AGAIN, "a quota was exceeded"
    PRODUCER_FENCED = 90, _FINAL, "a newer producer uses the transactional id, or its transaction timed out"
    RESOURCE_NOT_FOUND = 91, _FINAL, "the requested resource does not exist"
    DUPLICATE_RESOURCE = 92, _FINAL, "the request names a resource twice"
    UNACCEPTABLE_CREDENTIAL = 93, _FINAL, "a credential does not meet the rules"
    INCONSISTENT_VOTER_SET = 94, _FINAL, "the controllers do not agree on the set of voters"
    INVALID_UPDATE_VERSION = 95, _FINAL, "a version to update to is invalid"
    FEATURE_UPDATE_FAILED = 96, _FINAL, "the features could not be changed"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, _FINAL, "the controller cannot read the principal of the request"
    SNAPSHOT_NOT_FOUND = 98, _FINAL, "there is no such snapshot"
    POSITION_OUT_OF_RANGE = 99, _FINAL, "the position is beyond the snapshot's end"
    UNKNOWN_TOPIC_ID = 100, _AGAIN, "the broker has no topic of this id"
    DUPLICATE_BROKER_REGISTRATION = 101, _FINAL, "another broker is registered with this id"
    BROKER_ID_NOT_REGISTERED = 102, _FINAL, "no broker is registered with this id"
    INCONSISTENT_TOPIC_ID = 103, _AGAIN, "the log's topic id is not that of the request"
    INCONSISTENT_CLUSTER_ID = 104, _FINAL, "the cluster's id is not that of the request"
    TRANSACTIONAL_ID_NOT_FOUND = 105, _FINAL, "there is no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, _AGAIN, "the fetch session mixes topic names and ids"
    INELIGIBLE_REPLICA = 107, _FINAL, "the replica is not eligible for the in-sync set"
    NEW_LEADER_ELECTED = 108, _FINAL, "the change of the in-sync replicas elected a new leader"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, _FINAL, "the offset is in remote storage"
    FENCED_MEMBER_EPOCH = 110, _FINAL, "the member was fenced and must join again"
    UNRELEASED_INSTANCE_ID = 111, _FINAL, "another member of the group still uses this instance id"
    UNSUPPORTED_ASSIGNOR = 112, _FINAL, "the group does not support the assignor"
    STALE_MEMBER_EPOCH = 113, _FINAL, "the member's epoch is not the current one"
    MISMATCHED_ENDPOINT_TYPE = 114, _FINAL, "a request for controllers was sent to a broker, or the reverse"
    UNSUPPORTED_ENDPOINT_TYPE = 115, _FINAL, "there is no such kind of endpoint"
    UNKNOWN_CONTROLLER_ID = 116, _FINAL, "there is no such controller"
    UNKNOWN_SUBSCRIPTION_ID = 117, _FINAL, "the broker does not know the subscription to telemetry"
    TELEMETRY_TOO_LARGE = 118, _FINAL, "the telemetry is larger than the broker accepts"
    INVALID_REGISTRATION = 119, _FINAL, "the broker's registration is invalid"
    TRANSACTION_ABORTABLE = 120, _FINAL, "the transaction failed and has to be aborted"
    INVALID_RECORD_STATE = 121, _FINAL, "the record cannot be acknowledged now"
    SHARE_SESSION_NOT_FOUND = 122, _AGAIN, "the broker no longer knows the share session"
    INVALID_SHARE_SESSION_EPOCH = 123, _AGAIN, "the request is out of order in its share session"
    FENCED_STATE_EPOCH = 124, _FINAL, "the epoch of the share group's state is not the current one"
    INVALID_VOTER_KEY = 125, _FINAL, "the voter's key is not that of the replica"
    DUPLICATE_VOTER = 126, _FINAL, "the voter already exists"
    VOTER_NOT_FOUND = 127, _FINAL, "there is no such voter"
    INVALID_REGULAR_EXPRESSION = 128, _FINAL, "the regular expression is invalid"
    REBOOTSTRAP_REQUIRED = 129, _FINAL, "the client's view of the cluster is stale: bootstrap again"
    STREAMS_INVALID_TOPOLOGY = 130, _FINAL, "the streams topology is invalid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, _FINAL, "the epoch of the streams topology is invalid"
    STREAMS_TOPOLOGY_FENCED = 132, _FINAL, "the epoch of the streams topology is outdated"
    SHARE_SESSION_LIMIT_REACHED = 133, _AGAIN, "the broker has reached its maximum number of share sessions"


class ErrorInfo(NamedTuple):
    """`code`, `name`, `retriable`: trying again can help; `text`: what it means; `refresh`: fetch metadata first."""

    code: int
    name: str
    retriable: bool
    text: str
    refresh: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.code}): {self.text}"


#: Codes after which the broker is not, or may not be, the right one any more.
_REFRESH = frozenset({3, 5, 6, 9, 13, 56, 72, 74, 75, 80, 83, 84, 100, 103, 129})

#: All that is known of each code.
ERRORS = {int(code): ErrorInfo(int(code), code.name, code.retriable, code.text, code in _REFRESH) for code in ErrorCode}


def error_info(code: int) -> ErrorInfo:
    """Return the description of `code`; an unknown one is described as unknown and not retriable."""
    known = ERRORS.get(code)
    return known or ErrorInfo(code, f"ERROR_{code}", _FINAL, "an error code of a newer broker")


def is_unexplained(code: int) -> bool:
    """Return whether a code says only that the broker failed: UNKNOWN, and codes that no table knows."""
    return code == ErrorCode.UNKNOWN or code not in ERRORS
