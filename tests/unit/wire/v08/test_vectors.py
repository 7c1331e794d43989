"""One small message of every API at its ends: the bytes that it has to have.

The bytes of keys 4 to 7 were compared with recordings of brokers; those of all others with another implementation.
"""

from __future__ import annotations

from typing import Any

import pytest

from consumerd.wire.v08 import APIS, NO_UUID, Direction, decode_body, encode_body
from consumerd.wire.v08.apis.common import NO_OPERATIONS

ID = bytes(range(16))

#: API key, direction, version, message, and its bytes without header.
# fmt: off
VECTORS: list[tuple[int, Direction, int, dict[str, Any], str]] = [
    (0, "request", 0, {"acks": 1, "timeout_ms": 1000, "topic_data": [{"name": "t", "partition_data": [{"index": 2,
      "records": b"\x01\x02\x03"}]}]}, "00010000 03e80000 00010001 74000000 01000000 02000000 03010203"),
    (0, "request", 13, {"transactional_id": None, "acks": -1, "timeout_ms": 1000, "topic_data": [{"topic_id": ID,
      "partition_data": [{"index": 2, "records": b"\x01\x02\x03"}]}]},
     "00ffff00 0003e802 00010203 04050607 08090a0b 0c0d0e0f 02000000 02040102 03000000"),
    (0, "response", 2, {"responses": [{"name": "t", "partition_responses": [{"index": 2, "error_code": 0,
      "base_offset": 7, "log_append_time_ms": -1}]}], "throttle_time_ms": 5},
     "00000001 00017400 00000100 00000200 00000000 00000000 07ffffff ffffffff ff000000 05"),
    (0, "response", 10, {"responses": [{"name": "t", "partition_responses": [{"index": 2, "error_code": 6,
      "base_offset": -1, "log_append_time_ms": -1, "log_start_offset": -1, "record_errors": [{"batch_index": 1,
      "batch_index_error_message": "no"}], "error_message": None, "current_leader": {"leader_id": 3,
      "leader_epoch": 4}}]}], "throttle_time_ms": 0, "node_endpoints": [{"node_id": 3, "host": "h", "port": 9092,
      "rack": None}]},
     ("02027402 00000002 0006ffff ffffffff ffffffff ffffffff ffffffff ffffffff ffff0200 00000103 6e6f0000 01000900 "
      "00000300 00000400 00000000 0001000d 02000000 03026800 00238400 00")),
    (1, "request", 3, {"replica_id": -1, "max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1048576,
      "topics": [{"topic": "t", "partitions": [{"partition": 0, "fetch_offset": 9, "partition_max_bytes": 65536}]}]},
     "ffffffff 000001f4 00000001 00100000 00000001 00017400 00000100 00000000 00000000 00000900 010000"),
    (1, "request", 17, {"cluster_id": None, "replica_state": None, "max_wait_ms": 500, "min_bytes": 1,
      "max_bytes": 1048576, "isolation_level": 1, "session_id": 0, "session_epoch": -1, "topics": [{"topic_id": ID,
      "partitions": [{"partition": 0, "current_leader_epoch": -1, "fetch_offset": 9, "last_fetched_epoch": -1,
      "log_start_offset": -1, "partition_max_bytes": 65536, "replica_directory_id": NO_UUID}]}],
      "forgotten_topics_data": [{"topic_id": ID, "partitions": [1, 2]}], "rack_id": "r"},
     ("000001f4 00000001 00100000 01000000 00ffffff ff020001 02030405 06070809 0a0b0c0d 0e0f0200 000000ff ffffff00 "
      "00000000 000009ff ffffffff ffffffff ffffff00 01000000 00020001 02030405 06070809 0a0b0c0d 0e0f0300 00000100 "
      "00000200 027200")),
    (1, "response", 0, {"responses": [{"topic": "t", "partitions": [{"partition_index": 0, "error_code": 0,
      "high_watermark": 10, "records": b"\xff\x00"}]}]},
     "00000001 00017400 00000100 00000000 00000000 00000000 0a000000 02ff00"),
    (1, "response", 12, {"throttle_time_ms": 0, "error_code": 0, "session_id": 0, "responses": [{"topic": "t",
      "partitions": [{"partition_index": 0, "error_code": 0, "high_watermark": 10, "last_stable_offset": 10,
      "log_start_offset": 0, "diverging_epoch": {"epoch": 1, "end_offset": 2}, "current_leader": None,
      "snapshot_id": None, "aborted_transactions": None, "preferred_read_replica": -1, "records": b"\xff\x00"}]}]},
     ("00000000 00000000 00000202 74020000 00000000 00000000 0000000a 00000000 0000000a 00000000 00000000 00ffffff "
      "ff03ff00 01000d00 00000100 00000000 00000200 0000")),
    (2, "request", 0, {"replica_id": -1, "topics": [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1,
      "max_num_offsets": 1}]}]}, "ffffffff 00000001 00017400 00000100 000000ff ffffffff ffffff00 000001"),
    (2, "request", 10, {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t",
      "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}]}], "timeout_ms": 30000},
     "ffffffff 00020274 02000000 00ffffff ffffffff ffffffff fe000000 00753000"),
    (2, "response", 0, {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "error_code": 0,
      "old_style_offsets": [9, 0]}]}]},
     "00000001 00017400 00000100 00000000 00000000 02000000 00000000 09000000 00000000 00"),
    (2, "response", 6, {"throttle_time_ms": 0, "topics": [{"name": "t", "partitions": [{"partition_index": 0,
      "error_code": 0, "timestamp": -1, "offset": 9, "leader_epoch": 2}]}]},
     "00000000 02027402 00000000 0000ffff ffffffff ffff0000 00000000 00090000 00020000 00"),
    (3, "request", 1, {"topics": None}, "ffffffff"),
    (3, "request", 12, {"topics": [{"topic_id": NO_UUID, "name": "t"}], "allow_auto_topic_creation": False,
      "include_topic_authorized_operations": False}, "02000000 00000000 00000000 00000000 00027400 000000"),
    (3, "response", 0, {"brokers": [{"node_id": 1, "host": "h", "port": 9092}], "topics": [{"error_code": 0,
      "name": "t", "partitions": [{"error_code": 0, "partition_index": 0, "leader_id": 1, "replica_nodes": [1, 2],
      "isr_nodes": [1]}]}]},
     ("00000001 00000001 00016800 00238400 00000100 00000174 00000001 00000000 00000000 00010000 00020000 00010000 "
      "00020000 00010000 0001")),
    (3, "response", 13, {"throttle_time_ms": 0, "brokers": [{"node_id": 1, "host": "h", "port": 9092, "rack": "a"}],
      "cluster_id": "c", "controller_id": 1, "topics": [{"error_code": 0, "name": "t", "topic_id": ID,
      "is_internal": False, "partitions": [{"error_code": 0, "partition_index": 0, "leader_id": 1, "leader_epoch": 4,
      "replica_nodes": [1, 2], "isr_nodes": [1], "offline_replicas": [2]}],
      "topic_authorized_operations": NO_OPERATIONS}], "error_code": 0},
     ("00000000 02000000 01026800 00238402 61000263 00000001 02000002 74000102 03040506 0708090a 0b0c0d0e 0f000200 "
      "00000000 00000000 01000000 04030000 00010000 00020200 00000102 00000002 00800000 00000000 00")),
    (4, "request", 0, {"controller_id": 1, "controller_epoch": 2, "partition_states": [{"topic": "t", "partition": 0,
      "controller_epoch": 2, "leader": 1, "leader_epoch": 3, "isr": [1], "zk_version": 4, "replicas": [1, 2]}],
      "live_leaders": [{"id": 1, "host": "h", "port": 9092}]},
     ("00000001 00000002 00000001 00017400 00000000 00000200 00000100 00000300 00000100 00000100 00000400 00000200 "
      "00000100 00000200 00000100 00000100 01680000 2384")),
    (4, "response", 0, {"error_code": 0, "partitions": [{"topic": "t", "partition": 0, "error_code": 11}]},
     "00000000 00010001 74000000 00000b"),
    (5, "request", 0, {"controller_id": 1, "controller_epoch": 2, "delete_partitions": True,
      "partitions": [{"topic": "t", "partition": 0}]}, "00000001 00000002 01000000 01000174 00000000"),
    (5, "response", 0, {"error_code": 11, "partitions": []}, "000b0000 0000"),
    (6, "request", 0, {"controller_id": 1, "controller_epoch": 2, "partition_states": [], "live_brokers": [{"id": 1,
      "host": "h", "port": 9092}]}, "00000001 00000002 00000000 00000001 00000001 00016800 002384"),
    (6, "request", 2, {"controller_id": 1, "controller_epoch": 2, "partition_states": [], "live_brokers": [{"id": 1,
      "end_points": [{"port": 9093, "host": "h", "security_protocol_type": 1}], "rack": None}]},
     "00000001 00000002 00000000 00000001 00000001 00000001 00002385 00016800 01ffff"),
    (6, "response", 2, {"error_code": 0}, "0000"),
    (7, "request", 1, {"broker_id": 3}, "00000003"),
    (7, "response", 0, {"error_code": 0, "partitions_remaining": [{"topic": "t", "partition": 5}]},
     "00000000 00010001 74000000 05"),
    (8, "request", 1, {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": [{"name": "t",
      "partitions": [{"partition_index": 0, "committed_offset": 42, "commit_timestamp": -1,
      "committed_metadata": None}]}]},
     "000167ff ffffff00 00000000 01000174 00000001 00000000 00000000 0000002a ffffffff ffffffff ffff"),
    (8, "request", 8, {"group_id": "g", "generation_id_or_member_epoch": 4, "member_id": "m", "group_instance_id": "i",
      "topics": [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 42,
      "committed_leader_epoch": -1, "committed_metadata": "x"}]}]},
     "02670000 0004026d 02690202 74020000 00000000 00000000 002affff ffff0278 000000"),
    (8, "response", 0, {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "error_code": 22}]}]},
     "00000001 00017400 00000100 00000000 16"),
    (8, "response", 10, {"throttle_time_ms": 0, "topics": [{"topic_id": ID, "partitions": [{"partition_index": 0,
      "error_code": 0}]}]}, "00000000 02000102 03040506 0708090a 0b0c0d0e 0f020000 00000000 000000"),
    (9, "request", 1, {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}]},
     "00016700 00000100 01740000 00010000 0000"),
    (9, "request", 5, {"group_id": "g", "topics": None}, "000167ff ffffff"),
    (9, "request", 9, {"groups": [{"group_id": "g", "member_id": None, "member_epoch": -1, "topics": [{"name": "t",
      "partition_indexes": [0, 1]}]}], "require_stable": True},
     "02026700 ffffffff 02027403 00000000 00000001 00000100"),
    (9, "response", 0, {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 42,
      "metadata": "", "error_code": 0}]}]}, "00000001 00017400 00000100 00000000 00000000 00002a00 000000"),
    (9, "response", 8, {"throttle_time_ms": 0, "groups": [{"group_id": "g", "topics": [{"name": "t",
      "partitions": [{"partition_index": 0, "committed_offset": 42, "committed_leader_epoch": -1, "metadata": "",
      "error_code": 0}]}], "error_code": 0}]},
     "00000000 02026702 02740200 00000000 00000000 00002aff ffffff01 00000000 00000000"),
    (10, "request", 0, {"key": "g"}, "000167"),
    (10, "request", 4, {"key_type": 0, "coordinator_keys": ["g", "h"]}, "00030267 026800"),
    (10, "response", 0, {"error_code": 0, "node_id": 1, "host": "h", "port": 9092}, "00000000 00010001 68000023 84"),
    (10, "response", 3, {"throttle_time_ms": 0, "error_code": 15, "error_message": None, "node_id": -1, "host": "",
      "port": -1}, "00000000 000f00ff ffffff01 ffffffff 00"),
    (10, "response", 4, {"throttle_time_ms": 0, "coordinators": [{"key": "g", "node_id": 1, "host": "h", "port": 9092,
      "error_code": 0, "error_message": None}]}, "00000000 02026700 00000102 68000023 84000000 0000"),
    (11, "request", 1, {"group_id": "g", "session_timeout_ms": 30000, "rebalance_timeout_ms": 60000, "member_id": "",
      "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b"\x00\x00"}]},
     "00016700 00753000 00ea6000 00000863 6f6e7375 6d657200 00000100 0572616e 67650000 00020000"),
    (11, "request", 9, {"group_id": "g", "session_timeout_ms": 30000, "rebalance_timeout_ms": 60000, "member_id": "",
      "group_instance_id": None, "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b"\x00\x00"}],
      "reason": None}, "02670000 75300000 ea600100 09636f6e 73756d65 72020672 616e6765 03000000 0000"),
    (11, "response", 0, {"error_code": 0, "generation_id": 1, "protocol_name": "range", "leader": "m", "member_id": "m",
      "members": [{"member_id": "m", "metadata": b"\x00\x00"}]},
     "00000000 00010005 72616e67 6500016d 00016d00 00000100 016d0000 00020000"),
    (11, "response", 9, {"throttle_time_ms": 0, "error_code": 79, "generation_id": -1, "protocol_type": None,
      "protocol_name": None, "leader": "", "skip_assignment": False, "member_id": "m", "members": []},
     "00000000 004fffff ffff0000 0100026d 0100"),
    (12, "request", 0, {"group_id": "g", "generation_id": 1, "member_id": "m"}, "00016700 00000100 016d"),
    (12, "request", 4, {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None},
     "02670000 0001026d 0000"),
    (12, "response", 0, {"error_code": 27}, "001b"),
    (12, "response", 4, {"throttle_time_ms": 0, "error_code": 27}, "00000000 001b00"),
    (13, "request", 0, {"group_id": "g", "member_id": "m"}, "00016700 016d"),
    (13, "request", 5, {"group_id": "g", "members": [{"member_id": "m", "group_instance_id": None, "reason": "bye"}]},
     "02670202 6d000462 79650000"),
    (13, "response", 0, {"error_code": 25}, "0019"),
    (13, "response", 4, {"throttle_time_ms": 0, "error_code": 0, "members": [{"member_id": "m",
      "group_instance_id": None, "error_code": 25}]}, "00000000 00000202 6d000019 0000"),
    (14, "request", 0, {"group_id": "g", "generation_id": 1, "member_id": "m", "assignments": [{"member_id": "m",
      "assignment": b"\x01"}]}, "00016700 00000100 016d0000 00010001 6d000000 0101"),
    (14, "request", 5, {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None,
      "protocol_type": "consumer", "protocol_name": "range", "assignments": []},
     "02670000 0001026d 0009636f 6e73756d 65720672 616e6765 0100"),
    (14, "response", 0, {"error_code": 0, "assignment": b"\x01"}, "00000000 000101"),
    (14, "response", 5, {"throttle_time_ms": 0, "error_code": 0, "protocol_type": "consumer", "protocol_name": "range",
      "assignment": b"\x01"}, "00000000 00000963 6f6e7375 6d657206 72616e67 65020100"),
    (15, "request", 0, {"groups": ["g"]}, "00000001 000167"),
    (15, "request", 5, {"groups": ["g"], "include_authorized_operations": True}, "02026701 00"),
    (15, "response", 0, {"groups": [{"error_code": 0, "group_id": "g", "group_state": "Stable",
      "protocol_type": "consumer", "protocol_data": "range", "members": [{"member_id": "m", "client_id": "c",
      "client_host": "/127.0.0.1", "member_metadata": b"\x00", "member_assignment": b""}]}]},
     ("00000001 00000001 67000653 7461626c 65000863 6f6e7375 6d657200 0572616e 67650000 00010001 6d000163 000a2f31 "
      "32372e30 2e302e31 00000001 00000000 00")),
    (15, "response", 6, {"throttle_time_ms": 0, "groups": [{"error_code": 69, "error_message": "none", "group_id": "g",
      "group_state": "Dead", "protocol_type": "", "protocol_data": "", "members": [],
      "authorized_operations": NO_OPERATIONS}]}, "00000000 02004505 6e6f6e65 02670544 65616401 01018000 00000000"),
    (16, "request", 0, {}, ""),
    (16, "request", 5, {"states_filter": ["Stable"], "types_filter": []}, "02075374 61626c65 0100"),
    (16, "response", 0, {"error_code": 0, "groups": [{"group_id": "g", "protocol_type": "consumer"}]},
     "00000000 00010001 67000863 6f6e7375 6d6572"),
    (16, "response", 5, {"throttle_time_ms": 0, "error_code": 0, "groups": [{"group_id": "g",
      "protocol_type": "consumer", "group_state": "Stable", "group_type": "classic"}]},
     "00000000 00000202 6709636f 6e73756d 65720753 7461626c 6508636c 61737369 630000"),
    (17, "request", 0, {"mechanism": "PLAIN"}, "0005504c 41494e"),
    (17, "response", 1, {"error_code": 33, "mechanisms": ["PLAIN", "GSSAPI"]},
     "00210000 00020005 504c4149 4e000647 53534150 49"),
    (18, "request", 0, {}, ""),
    (18, "request", 3, {"client_software_name": "c", "client_software_version": "1"}, "02630231 00"),
    (18, "response", 0, {"error_code": 0, "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 4}]},
     "00000000 00010012 00000004"),
    (18, "response", 3, {"error_code": 0, "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 4}],
      "throttle_time_ms": 0, "supported_features": [{"name": "metadata.version", "min_version": 1, "max_version": 7}],
      "finalized_features_epoch": 5, "finalized_features": [], "zk_migration_ready": False},
     ("00000200 12000000 04000000 00000200 1702116d 65746164 6174612e 76657273 696f6e00 01000700 01080000 00000000 "
      "0005")),
    (19, "request", 0, {"topics": [{"name": "t", "num_partitions": 3, "replication_factor": 1, "assignments": [],
      "configs": [{"name": "k", "value": "v"}]}], "timeout_ms": 1000},
     "00000001 00017400 00000300 01000000 00000000 0100016b 00017600 0003e8"),
    (19, "request", 7, {"topics": [{"name": "t", "num_partitions": -1, "replication_factor": -1,
      "assignments": [{"partition_index": 0, "broker_ids": [1, 2]}], "configs": [{"name": "k", "value": None}]}],
      "timeout_ms": 1000, "validate_only": True},
     "020274ff ffffffff ff020000 00000300 00000100 00000200 02026b00 00000000 03e80100"),
    (19, "response", 0, {"topics": [{"name": "t", "error_code": 36}]}, "00000001 00017400 24"),
    (19, "response", 7, {"throttle_time_ms": 0, "topics": [{"name": "t", "topic_id": ID, "error_code": 0,
      "error_message": None, "topic_config_error_code": 29, "num_partitions": 3, "replication_factor": 1,
      "configs": None}]}, "00000000 02027400 01020304 05060708 090a0b0c 0d0e0f00 00000000 00030001 00010002 001d00"),
    (20, "request", 0, {"topic_names": ["t", "u"], "timeout_ms": 1000}, "00000002 00017400 01750000 03e8"),
    (20, "request", 6, {"topics": [{"name": None, "topic_id": ID}], "timeout_ms": 1000},
     "02000001 02030405 06070809 0a0b0c0d 0e0f0000 0003e800"),
    (20, "response", 0, {"responses": [{"name": "t", "error_code": 0}]}, "00000001 00017400 00"),
    (20, "response", 6, {"throttle_time_ms": 0, "responses": [{"name": "t", "topic_id": ID, "error_code": 41,
      "error_message": "not here"}]},
     "00000000 02027400 01020304 05060708 090a0b0c 0d0e0f00 29096e6f 74206865 72650000"),
    (22, "request", 0, {"transactional_id": None, "transaction_timeout_ms": 60000}, "ffff0000 ea60"),
    (22, "request", 4, {"transactional_id": None, "transaction_timeout_ms": 60000, "producer_id": -1,
      "producer_epoch": -1}, "000000ea 60ffffff ffffffff ffffff00"),
    (22, "response", 0, {"throttle_time_ms": 0, "error_code": 0, "producer_id": 1000, "producer_epoch": 0},
     "00000000 00000000 00000000 03e80000"),
    (22, "response", 6, {"throttle_time_ms": 0, "error_code": 0, "producer_id": 1000, "producer_epoch": 0,
      "ongoing_txn_producer_id": -1, "ongoing_txn_producer_epoch": -1},
     "00000000 00000000 00000000 03e80000 ffffffff ffffffff ffff00"),
    (23, "request", 0, {"topics": [{"topic": "t", "partitions": [{"partition": 2, "leader_epoch": 5}]}]},
     "00000001 00017400 00000100 00000200 000005"),
    (23, "request", 2, {"topics": [{"topic": "t", "partitions": [{"partition": 2, "current_leader_epoch": 6,
      "leader_epoch": 5}]}]}, "00000001 00017400 00000100 00000200 00000600 000005"),
    (23, "request", 3, {"replica_id": -1, "topics": [{"topic": "t", "partitions": [{"partition": 2,
      "current_leader_epoch": 6, "leader_epoch": 5}]}]},
     "ffffffff 00000001 00017400 00000100 00000200 00000600 000005"),
    (23, "request", 4, {"replica_id": -1, "topics": [{"topic": "t", "partitions": [{"partition": 2,
      "current_leader_epoch": 6, "leader_epoch": 5}]}]}, "ffffffff 02027402 00000002 00000006 00000005 000000"),
    (23, "response", 0, {"topics": [{"topic": "t", "partitions": [{"error_code": 0, "partition": 2,
      "end_offset": 9}]}]}, "00000001 00017400 00000100 00000000 02000000 00000000 09"),
    (23, "response", 1, {"topics": [{"topic": "t", "partitions": [{"error_code": 74, "partition": 2, "leader_epoch": -1,
      "end_offset": -1}]}]}, "00000001 00017400 00000100 4a000000 02ffffff ffffffff ffffffff ff"),
    (23, "response", 3, {"throttle_time_ms": 7, "topics": [{"topic": "t", "partitions": [{"error_code": 0,
      "partition": 2, "leader_epoch": 5, "end_offset": 9}]}]},
     "00000007 00000001 00017400 00000100 00000000 02000000 05000000 00000000 09"),
    (23, "response", 4, {"throttle_time_ms": 7, "topics": [{"topic": "t", "partitions": [{"error_code": 0,
      "partition": 2, "leader_epoch": 5, "end_offset": 9}]}]},
     "00000007 02027402 00000000 00020000 00050000 00000000 00090000 00"),
    (32, "request", 0, {"resources": [{"resource_type": 2, "resource_name": "t", "configuration_keys": None}]},
     "00000001 02 0001 74 ffffffff"),
    (32, "request", 4, {"resources": [{"resource_type": 2, "resource_name": "t", "configuration_keys": ["a"]}],
      "include_synonyms": False, "include_documentation": False}, "02 02 0274 02 0261 00 00 00 00"),
    (32, "response", 0, {"throttle_time_ms": 5, "results": [{"error_code": 29, "error_message": "no",
      "resource_type": 2, "resource_name": "t", "configs": [{"name": "a", "value": None, "read_only": False,
      "is_default": True, "is_sensitive": True}]}]},
     "00000005 00000001 001d 0002 6e6f 02 0001 74 00000001 0001 61 ffff 00 01 01"),
    (32, "response", 4, {"throttle_time_ms": 5, "results": [{"error_code": 0, "error_message": None, "resource_type": 2,
      "resource_name": "t", "configs": [{"name": "a", "value": "1", "read_only": False, "config_source": 1,
      "is_sensitive": True, "synonyms": [{"name": "b", "value": None, "source": 5}], "config_type": 3,
      "documentation": None}]}]}, "00000005 02 0000 00 02 0274 02 0261 0231 00 01 01 02 0262 00 05 00 03 00 00 00 00"),
    (36, "request", 0, {"auth_bytes": b"\x00u\x00p"}, "00000004 00750070"),
    (36, "request", 2, {"auth_bytes": b"\x00u\x00p"}, "05007500 7000"),
    (36, "response", 0, {"error_code": 58, "error_message": "no", "auth_bytes": b""}, "003a0002 6e6f0000 0000"),
    (36, "response", 2, {"error_code": 0, "error_message": None, "auth_bytes": b"", "session_lifetime_ms": 3600000},
     "00000001 00000000 0036ee80 00"),
    (42, "request", 0, {"groups_names": ["g"]}, "00000001 000167"),
    (42, "request", 2, {"groups_names": ["g"]}, "02026700"),
    (42, "response", 0, {"throttle_time_ms": 0, "results": [{"group_id": "g", "error_code": 68}]},
     "00000000 00000001 00016700 44"),
    (42, "response", 2, {"throttle_time_ms": 5, "results": [{"group_id": "g", "error_code": 0}]},
     "00000005 02026700 000000"),
    (61, "request", 0, {"topics": [{"name": "t", "partition_indexes": [2]}]}, "02 0274 02 00000002 00 00"),
    (61, "response", 0, {"throttle_time_ms": 5, "topics": [{"name": "t", "partitions": [{"partition_index": 2,
      "error_code": 0, "error_message": None, "active_producers": [{"producer_id": 4000, "producer_epoch": 1,
      "last_sequence": 4, "last_timestamp": 1700000000000, "coordinator_epoch": 3,
      "current_txn_start_offset": 44}]}]}]},
     ("00000005 02 0274 02 00000002 0000 00 02 0000000000000fa0 00000001 00000004 0000018bcfe56800 "
      "00000003000000000000002c 00 00 00 00")),
    (69, "request", 0, {"group_ids": ["g"], "include_authorized_operations": False}, "02026700 00"),
    (69, "request", 1, {"group_ids": ["g"], "include_authorized_operations": True}, "02026701 00"),
    *(
        (
            69,
            "response",
            version,
            {
                "throttle_time_ms": 0,
                "groups": [
                    {
                        "error_code": 0,
                        "error_message": None,
                        "group_id": "g",
                        "group_state": "Stable",
                        "group_epoch": 3,
                        "assignment_epoch": 2,
                        "assignor_name": "range",
                        "members": [
                            {
                                "member_id": "m",
                                "instance_id": None,
                                "rack_id": None,
                                "member_epoch": 2,
                                "client_id": "c",
                                "client_host": "/h",
                                "subscribed_topic_names": ["t"],
                                "subscribed_topic_regex": None,
                                "assignment": {
                                    "topic_partitions": [{"topic_id": ID, "topic_name": "t", "partitions": [1]}]
                                },
                                "target_assignment": {"topic_partitions": []},
                                **kind,
                            }
                        ],
                        "authorized_operations": NO_OPERATIONS,
                    }
                ],
            },
            (
                "00000000 02 0000 00 0267 07537461626c65 00000003 00000002 0672616e6765 02"
                f"026d 00 00 00000002 0263 032f68 02 0274 00 02 {ID.hex()} 0274 02 00000001 00 00"
                f"01 00 {tail} 00 80000000 00 00"
            ),
        )
        for version, kind, tail in ((0, {}, ""), (1, {"member_type": 1}, "01"))
    ),
    *(
        (68, "request", version, {"group_id": "g", "member_id": "m", "member_epoch": 3, "instance_id": "i",
          "rack_id": None, "rebalance_timeout_ms": 60000, "subscribed_topic_names": ["t"], **pattern,
          "server_assignor": "uniform", "topic_partitions": [{"topic_id": ID, "partitions": [1]}]},
         f"0267 026d 00000003 0269 00 0000ea60 02 0274 {text} 08756e69666f726d 02 {ID.hex()} 02 00000001 00 00")
        for version, pattern, text in ((0, {}, ""), (1, {"subscribed_topic_regex": "t.*"}, "04742e2a"))
    ),
    *(
        (68, "response", 1, {"throttle_time_ms": 0, "error_code": code, "error_message": None, "member_id": "m",
          "member_epoch": 4, "heartbeat_interval_ms": 5000, "assignment": assignment},
         f"00000000 {code:04x} 00 026d 00000004 00001388 {text} 00")
        for code, assignment, text in (
            (110, None, "ff"),
            (0, {"topic_partitions": [{"topic_id": ID, "partitions": [7]}]},
             f"01 02 {ID.hex()} 02 00000007 00 00"),
        )
    ),
]
# fmt: on


@pytest.mark.parametrize(
    ("key", "direction", "version", "body", "text"),
    VECTORS,
    ids=[f"{APIS[key].name}-{direction}-v{version}" for key, direction, version, _, _ in VECTORS],
)
def test_matches_the_vector(key: int, direction: Direction, version: int, body: dict[str, Any], text: str) -> None:
    data = bytes.fromhex(text)
    assert encode_body(APIS[key], direction, version, body) == data
    assert decode_body(APIS[key], direction, version, data) == body


def test_every_api_has_vectors_of_requests_and_responses() -> None:
    assert {(key, direction) for key, direction, *_ in VECTORS} == {
        (key, direction) for key in APIS for direction in ("request", "response")
    }
