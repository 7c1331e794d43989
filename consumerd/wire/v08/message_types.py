"""Types of the messages, for type checkers: no other module imports this one at run time.

`python -m tests.support.message_types` makes it from the schemas in `consumerd.wire.v08.apis`. Do not edit it.
"""
# ruff: noqa: UP013  # the form with fewer lines
# fmt: off

from collections.abc import Sequence
from typing import NotRequired, TypedDict

ProduceRequestPartitionData = TypedDict("ProduceRequestPartitionData", {"index": int,
    "records": bytes | memoryview | None})
ProduceRequestTopicData = TypedDict("ProduceRequestTopicData", {"name": NotRequired[str],
    "topic_id": NotRequired[bytes], "partition_data": Sequence[ProduceRequestPartitionData]})
ProduceRequest = TypedDict("ProduceRequest", {"transactional_id": NotRequired[str | None], "acks": int,
    "timeout_ms": int, "topic_data": Sequence[ProduceRequestTopicData]})
ProduceResponseRecordError = TypedDict("ProduceResponseRecordError", {"batch_index": int,
    "batch_index_error_message": str | None})
ProduceResponseCurrentLeader = TypedDict("ProduceResponseCurrentLeader", {"leader_id": int, "leader_epoch": int})
ProduceResponsePartitionResponse = TypedDict("ProduceResponsePartitionResponse", {"index": int, "error_code": int,
    "base_offset": int, "log_append_time_ms": NotRequired[int], "log_start_offset": NotRequired[int],
    "record_errors": NotRequired[list[ProduceResponseRecordError]], "error_message": NotRequired[str | None],
    "current_leader": NotRequired[ProduceResponseCurrentLeader | None]})
ProduceResponseResponse = TypedDict("ProduceResponseResponse", {"name": NotRequired[str],
    "topic_id": NotRequired[bytes], "partition_responses": list[ProduceResponsePartitionResponse]})
ProduceResponseNodeEndpoint = TypedDict("ProduceResponseNodeEndpoint", {"node_id": int, "host": str, "port": int,
    "rack": str | None})
ProduceResponse = TypedDict("ProduceResponse", {"responses": list[ProduceResponseResponse],
    "throttle_time_ms": NotRequired[int], "node_endpoints": NotRequired[list[ProduceResponseNodeEndpoint]]})
FetchRequestReplicaState = TypedDict("FetchRequestReplicaState", {"replica_id": NotRequired[int],
    "replica_epoch": NotRequired[int]})
FetchRequestPartition = TypedDict("FetchRequestPartition", {"partition": int, "current_leader_epoch": NotRequired[int],
    "fetch_offset": int, "last_fetched_epoch": NotRequired[int], "log_start_offset": NotRequired[int],
    "partition_max_bytes": int, "replica_directory_id": NotRequired[bytes], "high_watermark": NotRequired[int]})
FetchRequestTopic = TypedDict("FetchRequestTopic", {"topic": NotRequired[str], "topic_id": NotRequired[bytes],
    "partitions": Sequence[FetchRequestPartition]})
FetchRequestForgottenTopicsData = TypedDict("FetchRequestForgottenTopicsData", {"topic": NotRequired[str],
    "topic_id": NotRequired[bytes], "partitions": Sequence[int]})
FetchRequest = TypedDict("FetchRequest", {"cluster_id": NotRequired[str | None], "replica_id": NotRequired[int],
    "replica_state": NotRequired[FetchRequestReplicaState | None], "max_wait_ms": int, "min_bytes": int,
    "max_bytes": NotRequired[int], "isolation_level": NotRequired[int], "session_id": NotRequired[int],
    "session_epoch": NotRequired[int], "topics": Sequence[FetchRequestTopic],
    "forgotten_topics_data": NotRequired[Sequence[FetchRequestForgottenTopicsData]], "rack_id": NotRequired[str]})
FetchResponseDivergingEpoch = TypedDict("FetchResponseDivergingEpoch", {"epoch": int, "end_offset": int})
FetchResponseCurrentLeader = TypedDict("FetchResponseCurrentLeader", {"leader_id": int, "leader_epoch": int})
FetchResponseSnapshotId = TypedDict("FetchResponseSnapshotId", {"end_offset": int, "epoch": int})
FetchResponseAbortedTransaction = TypedDict("FetchResponseAbortedTransaction", {"producer_id": int,
    "first_offset": int})
FetchResponsePartition = TypedDict("FetchResponsePartition", {"partition_index": int, "error_code": int,
    "high_watermark": int, "last_stable_offset": NotRequired[int], "log_start_offset": NotRequired[int],
    "diverging_epoch": NotRequired[FetchResponseDivergingEpoch | None],
    "current_leader": NotRequired[FetchResponseCurrentLeader | None],
    "snapshot_id": NotRequired[FetchResponseSnapshotId | None],
    "aborted_transactions": NotRequired[list[FetchResponseAbortedTransaction] | None],
    "preferred_read_replica": NotRequired[int], "records": bytes | memoryview | None})
FetchResponseResponse = TypedDict("FetchResponseResponse", {"topic": NotRequired[str], "topic_id": NotRequired[bytes],
    "partitions": list[FetchResponsePartition]})
FetchResponseNodeEndpoint = TypedDict("FetchResponseNodeEndpoint", {"node_id": int, "host": str, "port": int,
    "rack": str | None})
FetchResponse = TypedDict("FetchResponse", {"throttle_time_ms": NotRequired[int], "error_code": NotRequired[int],
    "session_id": NotRequired[int], "responses": list[FetchResponseResponse],
    "node_endpoints": NotRequired[list[FetchResponseNodeEndpoint]]})
ListOffsetsRequestPartition = TypedDict("ListOffsetsRequestPartition", {"partition_index": int,
    "current_leader_epoch": NotRequired[int], "timestamp": int, "max_num_offsets": NotRequired[int]})
ListOffsetsRequestTopic = TypedDict("ListOffsetsRequestTopic", {"name": str,
    "partitions": Sequence[ListOffsetsRequestPartition]})
ListOffsetsRequest = TypedDict("ListOffsetsRequest", {"replica_id": NotRequired[int],
    "isolation_level": NotRequired[int], "topics": Sequence[ListOffsetsRequestTopic], "timeout_ms": NotRequired[int]})
ListOffsetsResponsePartition = TypedDict("ListOffsetsResponsePartition", {"partition_index": int, "error_code": int,
    "old_style_offsets": NotRequired[list[int]], "timestamp": NotRequired[int], "offset": NotRequired[int],
    "leader_epoch": NotRequired[int]})
ListOffsetsResponseTopic = TypedDict("ListOffsetsResponseTopic", {"name": str,
    "partitions": list[ListOffsetsResponsePartition]})
ListOffsetsResponse = TypedDict("ListOffsetsResponse", {"throttle_time_ms": NotRequired[int],
    "topics": list[ListOffsetsResponseTopic]})
MetadataRequestTopic = TypedDict("MetadataRequestTopic", {"topic_id": NotRequired[bytes], "name": str | None})
MetadataRequest = TypedDict("MetadataRequest", {"topics": Sequence[MetadataRequestTopic] | None,
    "allow_auto_topic_creation": NotRequired[bool], "include_cluster_authorized_operations": NotRequired[bool],
    "include_topic_authorized_operations": NotRequired[bool]})
MetadataResponseBroker = TypedDict("MetadataResponseBroker", {"node_id": int, "host": str, "port": int,
    "rack": NotRequired[str | None]})
MetadataResponsePartition = TypedDict("MetadataResponsePartition", {"error_code": int, "partition_index": int,
    "leader_id": int, "leader_epoch": NotRequired[int], "replica_nodes": list[int], "isr_nodes": list[int],
    "offline_replicas": NotRequired[list[int]]})
MetadataResponseTopic = TypedDict("MetadataResponseTopic", {"error_code": int, "name": str | None,
    "topic_id": NotRequired[bytes], "is_internal": NotRequired[bool], "partitions": list[MetadataResponsePartition],
    "topic_authorized_operations": NotRequired[int]})
MetadataResponse = TypedDict("MetadataResponse", {"throttle_time_ms": NotRequired[int],
    "brokers": list[MetadataResponseBroker], "cluster_id": NotRequired[str | None], "controller_id": NotRequired[int],
    "topics": list[MetadataResponseTopic], "cluster_authorized_operations": NotRequired[int],
    "error_code": NotRequired[int]})
OffsetCommitRequestPartition = TypedDict("OffsetCommitRequestPartition", {"partition_index": int,
    "committed_offset": int, "commit_timestamp": NotRequired[int], "committed_leader_epoch": NotRequired[int],
    "committed_metadata": NotRequired[str | None]})
OffsetCommitRequestTopic = TypedDict("OffsetCommitRequestTopic", {"name": NotRequired[str],
    "topic_id": NotRequired[bytes], "partitions": Sequence[OffsetCommitRequestPartition]})
OffsetCommitRequest = TypedDict("OffsetCommitRequest", {"group_id": str,
    "generation_id_or_member_epoch": NotRequired[int], "member_id": NotRequired[str],
    "group_instance_id": NotRequired[str | None], "retention_time_ms": NotRequired[int],
    "topics": Sequence[OffsetCommitRequestTopic]})
OffsetCommitResponsePartition = TypedDict("OffsetCommitResponsePartition", {"partition_index": int, "error_code": int})
OffsetCommitResponseTopic = TypedDict("OffsetCommitResponseTopic", {"name": NotRequired[str],
    "topic_id": NotRequired[bytes], "partitions": list[OffsetCommitResponsePartition]})
OffsetCommitResponse = TypedDict("OffsetCommitResponse", {"throttle_time_ms": NotRequired[int],
    "topics": list[OffsetCommitResponseTopic]})
OffsetFetchRequestTopic = TypedDict("OffsetFetchRequestTopic", {"name": str, "partition_indexes": Sequence[int]})
OffsetFetchRequestGroupTopic = TypedDict("OffsetFetchRequestGroupTopic", {"name": NotRequired[str],
    "topic_id": NotRequired[bytes], "partition_indexes": Sequence[int]})
OffsetFetchRequestGroup = TypedDict("OffsetFetchRequestGroup", {"group_id": str, "member_id": NotRequired[str | None],
    "member_epoch": NotRequired[int], "topics": Sequence[OffsetFetchRequestGroupTopic] | None})
OffsetFetchRequest = TypedDict("OffsetFetchRequest", {"group_id": NotRequired[str],
    "topics": NotRequired[Sequence[OffsetFetchRequestTopic] | None],
    "groups": NotRequired[Sequence[OffsetFetchRequestGroup]], "require_stable": NotRequired[bool]})
OffsetFetchResponsePartition = TypedDict("OffsetFetchResponsePartition", {"partition_index": int,
    "committed_offset": int, "committed_leader_epoch": NotRequired[int], "metadata": str | None, "error_code": int})
OffsetFetchResponseTopic = TypedDict("OffsetFetchResponseTopic", {"name": str,
    "partitions": list[OffsetFetchResponsePartition]})
OffsetFetchResponseTopicPartition = TypedDict("OffsetFetchResponseTopicPartition", {"partition_index": int,
    "committed_offset": int, "committed_leader_epoch": int, "metadata": str | None, "error_code": int})
OffsetFetchResponseGroupTopic = TypedDict("OffsetFetchResponseGroupTopic", {"name": NotRequired[str],
    "topic_id": NotRequired[bytes], "partitions": list[OffsetFetchResponseTopicPartition]})
OffsetFetchResponseGroup = TypedDict("OffsetFetchResponseGroup", {"group_id": str,
    "topics": list[OffsetFetchResponseGroupTopic], "error_code": int})
OffsetFetchResponse = TypedDict("OffsetFetchResponse", {"throttle_time_ms": NotRequired[int],
    "topics": NotRequired[list[OffsetFetchResponseTopic]], "error_code": NotRequired[int],
    "groups": NotRequired[list[OffsetFetchResponseGroup]]})
FindCoordinatorRequest = TypedDict("FindCoordinatorRequest", {"key": NotRequired[str], "key_type": NotRequired[int],
    "coordinator_keys": NotRequired[Sequence[str]]})
FindCoordinatorResponseCoordinator = TypedDict("FindCoordinatorResponseCoordinator", {"key": str, "node_id": int,
    "host": str, "port": int, "error_code": int, "error_message": str | None})
FindCoordinatorResponse = TypedDict("FindCoordinatorResponse", {"throttle_time_ms": NotRequired[int],
    "error_code": NotRequired[int], "error_message": NotRequired[str | None], "node_id": NotRequired[int],
    "host": NotRequired[str], "port": NotRequired[int],
    "coordinators": NotRequired[list[FindCoordinatorResponseCoordinator]]})
JoinGroupRequestProtocol = TypedDict("JoinGroupRequestProtocol", {"name": str, "metadata": bytes})
JoinGroupRequest = TypedDict("JoinGroupRequest", {"group_id": str, "session_timeout_ms": int,
    "rebalance_timeout_ms": NotRequired[int], "member_id": str, "group_instance_id": NotRequired[str | None],
    "protocol_type": str, "protocols": Sequence[JoinGroupRequestProtocol], "reason": NotRequired[str | None]})
JoinGroupResponseMember = TypedDict("JoinGroupResponseMember", {"member_id": str,
    "group_instance_id": NotRequired[str | None], "metadata": bytes})
JoinGroupResponse = TypedDict("JoinGroupResponse", {"throttle_time_ms": NotRequired[int], "error_code": int,
    "generation_id": int, "protocol_type": NotRequired[str | None], "protocol_name": str | None, "leader": str,
    "skip_assignment": NotRequired[bool], "member_id": str, "members": list[JoinGroupResponseMember]})
HeartbeatRequest = TypedDict("HeartbeatRequest", {"group_id": str, "generation_id": int, "member_id": str,
    "group_instance_id": NotRequired[str | None]})
HeartbeatResponse = TypedDict("HeartbeatResponse", {"throttle_time_ms": NotRequired[int], "error_code": int})
LeaveGroupRequestMember = TypedDict("LeaveGroupRequestMember", {"member_id": str,
    "group_instance_id": NotRequired[str | None], "reason": NotRequired[str | None]})
LeaveGroupRequest = TypedDict("LeaveGroupRequest", {"group_id": str, "member_id": NotRequired[str],
    "members": NotRequired[Sequence[LeaveGroupRequestMember]]})
LeaveGroupResponseMember = TypedDict("LeaveGroupResponseMember", {"member_id": str, "group_instance_id": str | None,
    "error_code": int})
LeaveGroupResponse = TypedDict("LeaveGroupResponse", {"throttle_time_ms": NotRequired[int], "error_code": int,
    "members": NotRequired[list[LeaveGroupResponseMember]]})
SyncGroupRequestAssignment = TypedDict("SyncGroupRequestAssignment", {"member_id": str, "assignment": bytes})
SyncGroupRequest = TypedDict("SyncGroupRequest", {"group_id": str, "generation_id": int, "member_id": str,
    "group_instance_id": NotRequired[str | None], "protocol_type": NotRequired[str | None],
    "protocol_name": NotRequired[str | None], "assignments": Sequence[SyncGroupRequestAssignment]})
SyncGroupResponse = TypedDict("SyncGroupResponse", {"throttle_time_ms": NotRequired[int], "error_code": int,
    "protocol_type": NotRequired[str | None], "protocol_name": NotRequired[str | None], "assignment": bytes})
DescribeGroupsRequest = TypedDict("DescribeGroupsRequest", {"groups": Sequence[str],
    "include_authorized_operations": NotRequired[bool]})
DescribeGroupsResponseMember = TypedDict("DescribeGroupsResponseMember", {"member_id": str,
    "group_instance_id": NotRequired[str | None], "client_id": str, "client_host": str, "member_metadata": bytes,
    "member_assignment": bytes})
DescribeGroupsResponseGroup = TypedDict("DescribeGroupsResponseGroup", {"error_code": int,
    "error_message": NotRequired[str | None], "group_id": str, "group_state": str, "protocol_type": str,
    "protocol_data": str, "members": list[DescribeGroupsResponseMember], "authorized_operations": NotRequired[int]})
DescribeGroupsResponse = TypedDict("DescribeGroupsResponse", {"throttle_time_ms": NotRequired[int],
    "groups": list[DescribeGroupsResponseGroup]})
ListGroupsRequest = TypedDict("ListGroupsRequest", {"states_filter": NotRequired[Sequence[str]],
    "types_filter": NotRequired[Sequence[str]]})
ListGroupsResponseGroup = TypedDict("ListGroupsResponseGroup", {"group_id": str, "protocol_type": str,
    "group_state": NotRequired[str], "group_type": NotRequired[str]})
ListGroupsResponse = TypedDict("ListGroupsResponse", {"throttle_time_ms": NotRequired[int], "error_code": int,
    "groups": list[ListGroupsResponseGroup]})
SaslHandshakeRequest = TypedDict("SaslHandshakeRequest", {"mechanism": str})
SaslHandshakeResponse = TypedDict("SaslHandshakeResponse", {"error_code": int, "mechanisms": list[str]})
ApiVersionsRequest = TypedDict("ApiVersionsRequest", {"client_software_name": NotRequired[str],
    "client_software_version": NotRequired[str]})
ApiVersionsResponseApiKey = TypedDict("ApiVersionsResponseApiKey", {"api_key": int, "min_version": int,
    "max_version": int})
ApiVersionsResponseSupportedFeature = TypedDict("ApiVersionsResponseSupportedFeature", {"name": str, "min_version": int,
    "max_version": int})
ApiVersionsResponseFinalizedFeature = TypedDict("ApiVersionsResponseFinalizedFeature", {"name": str,
    "max_version_level": int, "min_version_level": int})
ApiVersionsResponse = TypedDict("ApiVersionsResponse", {"error_code": int, "api_keys": list[ApiVersionsResponseApiKey],
    "throttle_time_ms": NotRequired[int], "supported_features": NotRequired[list[ApiVersionsResponseSupportedFeature]],
    "finalized_features_epoch": NotRequired[int],
    "finalized_features": NotRequired[list[ApiVersionsResponseFinalizedFeature]],
    "zk_migration_ready": NotRequired[bool]})
CreateTopicsRequestAssignment = TypedDict("CreateTopicsRequestAssignment", {"partition_index": int,
    "broker_ids": Sequence[int]})
CreateTopicsRequestConfig = TypedDict("CreateTopicsRequestConfig", {"name": str, "value": str | None})
CreateTopicsRequestTopic = TypedDict("CreateTopicsRequestTopic", {"name": str, "num_partitions": int,
    "replication_factor": int, "assignments": NotRequired[Sequence[CreateTopicsRequestAssignment]],
    "configs": NotRequired[Sequence[CreateTopicsRequestConfig]]})
CreateTopicsRequest = TypedDict("CreateTopicsRequest", {"topics": Sequence[CreateTopicsRequestTopic], "timeout_ms": int,
    "validate_only": NotRequired[bool]})
CreateTopicsResponseConfig = TypedDict("CreateTopicsResponseConfig", {"name": str, "value": str | None,
    "read_only": bool, "config_source": int, "is_sensitive": bool})
CreateTopicsResponseTopic = TypedDict("CreateTopicsResponseTopic", {"name": str, "topic_id": NotRequired[bytes],
    "error_code": int, "error_message": NotRequired[str | None], "topic_config_error_code": NotRequired[int],
    "num_partitions": NotRequired[int], "replication_factor": NotRequired[int],
    "configs": NotRequired[list[CreateTopicsResponseConfig] | None]})
CreateTopicsResponse = TypedDict("CreateTopicsResponse", {"throttle_time_ms": NotRequired[int],
    "topics": list[CreateTopicsResponseTopic]})
DeleteTopicsRequestTopic = TypedDict("DeleteTopicsRequestTopic", {"name": NotRequired[str | None],
    "topic_id": NotRequired[bytes]})
DeleteTopicsRequest = TypedDict("DeleteTopicsRequest", {"topic_names": NotRequired[Sequence[str]],
    "topics": NotRequired[Sequence[DeleteTopicsRequestTopic]], "timeout_ms": int})
DeleteTopicsResponseResponse = TypedDict("DeleteTopicsResponseResponse", {"name": str | None,
    "topic_id": NotRequired[bytes], "error_code": int, "error_message": NotRequired[str | None]})
DeleteTopicsResponse = TypedDict("DeleteTopicsResponse", {"throttle_time_ms": NotRequired[int],
    "responses": list[DeleteTopicsResponseResponse]})
InitProducerIdRequest = TypedDict("InitProducerIdRequest", {"transactional_id": str | None,
    "transaction_timeout_ms": int, "producer_id": NotRequired[int], "producer_epoch": NotRequired[int],
    "enable_2pc": NotRequired[bool], "keep_prepared_txn": NotRequired[bool]})
InitProducerIdResponse = TypedDict("InitProducerIdResponse", {"throttle_time_ms": int, "error_code": int,
    "producer_id": int, "producer_epoch": int, "ongoing_txn_producer_id": NotRequired[int],
    "ongoing_txn_producer_epoch": NotRequired[int]})
OffsetForLeaderEpochRequestPartition = TypedDict("OffsetForLeaderEpochRequestPartition", {"partition": int,
    "current_leader_epoch": NotRequired[int], "leader_epoch": int})
OffsetForLeaderEpochRequestTopic = TypedDict("OffsetForLeaderEpochRequestTopic", {"topic": str,
    "partitions": Sequence[OffsetForLeaderEpochRequestPartition]})
OffsetForLeaderEpochRequest = TypedDict("OffsetForLeaderEpochRequest", {"replica_id": NotRequired[int],
    "topics": Sequence[OffsetForLeaderEpochRequestTopic]})
OffsetForLeaderEpochResponsePartition = TypedDict("OffsetForLeaderEpochResponsePartition", {"error_code": int,
    "partition": int, "leader_epoch": NotRequired[int], "end_offset": int})
OffsetForLeaderEpochResponseTopic = TypedDict("OffsetForLeaderEpochResponseTopic", {"topic": str,
    "partitions": list[OffsetForLeaderEpochResponsePartition]})
OffsetForLeaderEpochResponse = TypedDict("OffsetForLeaderEpochResponse", {"throttle_time_ms": NotRequired[int],
    "topics": list[OffsetForLeaderEpochResponseTopic]})
AddPartitionsToTxnRequestTopic = TypedDict("AddPartitionsToTxnRequestTopic", {"name": str, "partitions": Sequence[int]})
AddPartitionsToTxnRequest = TypedDict("AddPartitionsToTxnRequest", {"transactional_id": str, "producer_id": int,
    "producer_epoch": int, "topics": Sequence[AddPartitionsToTxnRequestTopic]})
AddPartitionsToTxnResponseResultsByPartition = TypedDict("AddPartitionsToTxnResponseResultsByPartition",
    {"partition_index": int, "partition_error_code": int})
AddPartitionsToTxnResponseResultsByTopic = TypedDict("AddPartitionsToTxnResponseResultsByTopic", {"name": str,
    "results_by_partition": list[AddPartitionsToTxnResponseResultsByPartition]})
AddPartitionsToTxnResponse = TypedDict("AddPartitionsToTxnResponse", {"throttle_time_ms": int,
    "results_by_topic": list[AddPartitionsToTxnResponseResultsByTopic]})
AddOffsetsToTxnRequest = TypedDict("AddOffsetsToTxnRequest", {"transactional_id": str, "producer_id": int,
    "producer_epoch": int, "group_id": str})
AddOffsetsToTxnResponse = TypedDict("AddOffsetsToTxnResponse", {"throttle_time_ms": int, "error_code": int})
EndTxnRequest = TypedDict("EndTxnRequest", {"transactional_id": str, "producer_id": int, "producer_epoch": int,
    "committed": bool})
EndTxnResponse = TypedDict("EndTxnResponse", {"throttle_time_ms": int, "error_code": int,
    "producer_id": NotRequired[int], "producer_epoch": NotRequired[int]})
TxnOffsetCommitRequestPartition = TypedDict("TxnOffsetCommitRequestPartition", {"partition_index": int,
    "committed_offset": int, "committed_leader_epoch": NotRequired[int], "committed_metadata": NotRequired[str | None]})
TxnOffsetCommitRequestTopic = TypedDict("TxnOffsetCommitRequestTopic", {"name": str,
    "partitions": Sequence[TxnOffsetCommitRequestPartition]})
TxnOffsetCommitRequest = TypedDict("TxnOffsetCommitRequest", {"transactional_id": str, "group_id": str,
    "producer_id": int, "producer_epoch": int, "generation_id": NotRequired[int], "member_id": NotRequired[str],
    "group_instance_id": NotRequired[str | None], "topics": Sequence[TxnOffsetCommitRequestTopic]})
TxnOffsetCommitResponsePartition = TypedDict("TxnOffsetCommitResponsePartition", {"partition_index": int,
    "error_code": int})
TxnOffsetCommitResponseTopic = TypedDict("TxnOffsetCommitResponseTopic", {"name": str,
    "partitions": list[TxnOffsetCommitResponsePartition]})
TxnOffsetCommitResponse = TypedDict("TxnOffsetCommitResponse", {"throttle_time_ms": int,
    "topics": list[TxnOffsetCommitResponseTopic]})
DescribeConfigsRequestResource = TypedDict("DescribeConfigsRequestResource", {"resource_type": int,
    "resource_name": str, "configuration_keys": Sequence[str] | None})
DescribeConfigsRequest = TypedDict("DescribeConfigsRequest", {"resources": Sequence[DescribeConfigsRequestResource],
    "include_synonyms": NotRequired[bool], "include_documentation": NotRequired[bool]})
DescribeConfigsResponseSynonym = TypedDict("DescribeConfigsResponseSynonym", {"name": str, "value": str | None,
    "source": int})
DescribeConfigsResponseConfig = TypedDict("DescribeConfigsResponseConfig", {"name": str, "value": str | None,
    "read_only": bool, "config_source": NotRequired[int], "is_default": NotRequired[bool], "is_sensitive": bool,
    "synonyms": NotRequired[list[DescribeConfigsResponseSynonym]], "config_type": NotRequired[int],
    "documentation": NotRequired[str | None]})
DescribeConfigsResponseResult = TypedDict("DescribeConfigsResponseResult", {"error_code": int,
    "error_message": str | None, "resource_type": int, "resource_name": str,
    "configs": list[DescribeConfigsResponseConfig]})
DescribeConfigsResponse = TypedDict("DescribeConfigsResponse", {"throttle_time_ms": int,
    "results": list[DescribeConfigsResponseResult]})
SaslAuthenticateRequest = TypedDict("SaslAuthenticateRequest", {"auth_bytes": bytes})
SaslAuthenticateResponse = TypedDict("SaslAuthenticateResponse", {"error_code": int, "error_message": str | None,
    "auth_bytes": bytes, "session_lifetime_ms": NotRequired[int]})
DeleteGroupsRequest = TypedDict("DeleteGroupsRequest", {"groups_names": Sequence[str]})
DeleteGroupsResponseResult = TypedDict("DeleteGroupsResponseResult", {"group_id": str, "error_code": int})
DeleteGroupsResponse = TypedDict("DeleteGroupsResponse", {"throttle_time_ms": int,
    "results": list[DeleteGroupsResponseResult]})
DescribeProducersRequestTopic = TypedDict("DescribeProducersRequestTopic", {"name": str,
    "partition_indexes": Sequence[int]})
DescribeProducersRequest = TypedDict("DescribeProducersRequest", {"topics": Sequence[DescribeProducersRequestTopic]})
DescribeProducersResponseActiveProducer = TypedDict("DescribeProducersResponseActiveProducer", {"producer_id": int,
    "producer_epoch": int, "last_sequence": int, "last_timestamp": int, "coordinator_epoch": int,
    "current_txn_start_offset": int})
DescribeProducersResponsePartition = TypedDict("DescribeProducersResponsePartition", {"partition_index": int,
    "error_code": int, "error_message": str | None, "active_producers": list[DescribeProducersResponseActiveProducer]})
DescribeProducersResponseTopic = TypedDict("DescribeProducersResponseTopic", {"name": str,
    "partitions": list[DescribeProducersResponsePartition]})
DescribeProducersResponse = TypedDict("DescribeProducersResponse", {"throttle_time_ms": int,
    "topics": list[DescribeProducersResponseTopic]})
DescribeTransactionsRequest = TypedDict("DescribeTransactionsRequest", {"transactional_ids": Sequence[str]})
DescribeTransactionsResponseTopic = TypedDict("DescribeTransactionsResponseTopic", {"topic": str,
    "partitions": list[int]})
DescribeTransactionsResponseTransactionState = TypedDict("DescribeTransactionsResponseTransactionState",
    {"error_code": int, "transactional_id": str, "transaction_state": str, "transaction_timeout_ms": int,
    "transaction_start_time_ms": int, "producer_id": int, "producer_epoch": int,
    "topics": list[DescribeTransactionsResponseTopic]})
DescribeTransactionsResponse = TypedDict("DescribeTransactionsResponse", {"throttle_time_ms": int,
    "transaction_states": list[DescribeTransactionsResponseTransactionState]})
ListTransactionsRequest = TypedDict("ListTransactionsRequest", {"state_filters": NotRequired[Sequence[str]],
    "producer_id_filters": NotRequired[Sequence[int]], "duration_filter": NotRequired[int],
    "transactional_id_pattern": NotRequired[str | None]})
ListTransactionsResponseTransactionState = TypedDict("ListTransactionsResponseTransactionState",
    {"transactional_id": str, "producer_id": int, "transaction_state": str})
ListTransactionsResponse = TypedDict("ListTransactionsResponse", {"throttle_time_ms": int, "error_code": int,
    "unknown_state_filters": list[str], "transaction_states": list[ListTransactionsResponseTransactionState]})
ConsumerGroupHeartbeatRequestTopicPartition = TypedDict("ConsumerGroupHeartbeatRequestTopicPartition",
    {"topic_id": NotRequired[bytes], "partitions": Sequence[int]})
ConsumerGroupHeartbeatRequest = TypedDict("ConsumerGroupHeartbeatRequest", {"group_id": str, "member_id": str,
    "member_epoch": int, "instance_id": NotRequired[str | None], "rack_id": NotRequired[str | None],
    "rebalance_timeout_ms": NotRequired[int], "subscribed_topic_names": NotRequired[Sequence[str] | None],
    "subscribed_topic_regex": NotRequired[str | None], "server_assignor": NotRequired[str | None],
    "topic_partitions": NotRequired[Sequence[ConsumerGroupHeartbeatRequestTopicPartition] | None]})
ConsumerGroupHeartbeatResponseTopicPartition = TypedDict("ConsumerGroupHeartbeatResponseTopicPartition",
    {"topic_id": bytes, "partitions": list[int]})
ConsumerGroupHeartbeatResponseAssignment = TypedDict("ConsumerGroupHeartbeatResponseAssignment",
    {"topic_partitions": list[ConsumerGroupHeartbeatResponseTopicPartition]})
ConsumerGroupHeartbeatResponse = TypedDict("ConsumerGroupHeartbeatResponse", {"throttle_time_ms": int,
    "error_code": int, "error_message": str | None, "member_id": str | None, "member_epoch": int,
    "heartbeat_interval_ms": int, "assignment": ConsumerGroupHeartbeatResponseAssignment | None})
ConsumerGroupDescribeRequest = TypedDict("ConsumerGroupDescribeRequest", {"group_ids": Sequence[str],
    "include_authorized_operations": NotRequired[bool]})
ConsumerGroupDescribeResponseTopicPartition = TypedDict("ConsumerGroupDescribeResponseTopicPartition",
    {"topic_id": bytes, "topic_name": str, "partitions": list[int]})
ConsumerGroupDescribeResponseAssignment = TypedDict("ConsumerGroupDescribeResponseAssignment",
    {"topic_partitions": list[ConsumerGroupDescribeResponseTopicPartition]})
ConsumerGroupDescribeResponseTargetAssignment = TypedDict("ConsumerGroupDescribeResponseTargetAssignment",
    {"topic_partitions": list[ConsumerGroupDescribeResponseTopicPartition]})
ConsumerGroupDescribeResponseMember = TypedDict("ConsumerGroupDescribeResponseMember", {"member_id": str,
    "instance_id": str | None, "rack_id": str | None, "member_epoch": int, "client_id": str, "client_host": str,
    "subscribed_topic_names": list[str], "subscribed_topic_regex": str | None,
    "assignment": ConsumerGroupDescribeResponseAssignment,
    "target_assignment": ConsumerGroupDescribeResponseTargetAssignment, "member_type": NotRequired[int]})
ConsumerGroupDescribeResponseGroup = TypedDict("ConsumerGroupDescribeResponseGroup", {"error_code": int,
    "error_message": str | None, "group_id": str, "group_state": str, "group_epoch": int, "assignment_epoch": int,
    "assignor_name": str, "members": list[ConsumerGroupDescribeResponseMember], "authorized_operations": int})
ConsumerGroupDescribeResponse = TypedDict("ConsumerGroupDescribeResponse", {"throttle_time_ms": int,
    "groups": list[ConsumerGroupDescribeResponseGroup]})
