"""Groups seen and changed from outside: snapshots, findings, fixes, changed offsets. Nothing here is a member.

In: `read_v07_snapshot`, the `GroupSource` of a dialect, `diagnose`, `GroupDoctor`, `write_changes`. Out: snapshots,
findings and changes of nodes and offsets.

Files in reading order: snapshot, diagnosis, diagnosis_members, diagnosis_owners, diagnosis_offsets, diagnosis_progress,
findings, doctor, mending, lag, logs, offset_plans, offset_file, changes, editing, writing, verification, removal,
errors.
"""

from consumerd.member.fetch.errors import BrokerAnswerError
from consumerd.operate.admin.changes import OffsetChange, OffsetTarget, OffsetTargetKind, V07ChangePlanner
from consumerd.operate.admin.diagnosis import diagnose, diagnose_group, diagnose_once, persistent_findings
from consumerd.operate.admin.diagnosis_offsets import DiagnosisInput
from consumerd.operate.admin.diagnosis_progress import progress_findings
from consumerd.operate.admin.doctor import DoctorReport, GroupDoctor
from consumerd.operate.admin.editing import backup_of, in_the_way, write_changes
from consumerd.operate.admin.errors import ChangedMeanwhileError, CheckFailedError, OffsetFileError, RefusedError
from consumerd.operate.admin.findings import Fix, GroupFinding, GroupFindingKind, NudgeGroup, OffsetReset, Removal
from consumerd.operate.admin.lag import PartitionLag, known_lag, lag_of, read_lag, read_v08_lag, total_lag
from consumerd.operate.admin.logs import BrokerLogs, LogRange, LookupFailure, OffsetsQuery
from consumerd.operate.admin.mending import describe_step, steps_for, take_step, withheld
from consumerd.operate.admin.offset_file import GroupOffsets, format_json, format_text, parse_offsets, write_durably
from consumerd.operate.admin.offset_plans import (
    NamedPartitions,
    OffsetPlan,
    dialect_of,
    plan_reset,
    plan_set,
    plan_v08_reset,
    plan_v08_set,
)
from consumerd.operate.admin.removal import as_backup, delete_tree, read_tree, require_dead
from consumerd.operate.admin.snapshot import GroupSnapshot, Topics, V07GroupSnapshot, read_v07_snapshot
from consumerd.operate.admin.v08.broker_groups import (
    BrokerGroups,
)
from consumerd.operate.admin.v08.changes import (
    V08ChangePlanner,
)
from consumerd.operate.admin.v08.group_source import (
    GroupSource,
    ZooKeeperGroups,
    read_diagnosis_input,
)
from consumerd.operate.admin.v08.logs import (
    TimestampOffset,
    V08BrokerLogs,
)
from consumerd.operate.admin.v08.snapshot import (
    CoordinatorKind,
    V08GroupSnapshot,
    read_v08_snapshot,
)
from consumerd.operate.admin.v08.topic_nodes import (
    create_topic_nodes,
    delete_topic_node,
    plan_assignment,
    require_nodes,
    wait_for_leaders,
    wait_until_gone,
)
from consumerd.operate.admin.v08.topic_plan import (
    TopicPlan,
    assign_replicas,
)
from consumerd.operate.admin.v08.topic_requests import (
    create_topic,
    delete_topic,
)
from consumerd.operate.admin.verification import GroupDifference, differences, verify_group

__all__ = [
    "BrokerAnswerError",
    "BrokerGroups",
    "BrokerLogs",
    "ChangedMeanwhileError",
    "CheckFailedError",
    "CoordinatorKind",
    "DiagnosisInput",
    "DoctorReport",
    "Fix",
    "GroupDifference",
    "GroupDoctor",
    "GroupFinding",
    "GroupFindingKind",
    "GroupOffsets",
    "GroupSnapshot",
    "GroupSource",
    "LogRange",
    "LookupFailure",
    "NamedPartitions",
    "NudgeGroup",
    "OffsetChange",
    "OffsetFileError",
    "OffsetPlan",
    "OffsetReset",
    "OffsetTarget",
    "OffsetTargetKind",
    "OffsetsQuery",
    "PartitionLag",
    "RefusedError",
    "Removal",
    "TimestampOffset",
    "TopicPlan",
    "Topics",
    "V07ChangePlanner",
    "V07GroupSnapshot",
    "V08BrokerLogs",
    "V08ChangePlanner",
    "V08GroupSnapshot",
    "ZooKeeperGroups",
    "as_backup",
    "assign_replicas",
    "backup_of",
    "create_topic",
    "create_topic_nodes",
    "delete_topic",
    "delete_topic_node",
    "delete_tree",
    "describe_step",
    "diagnose",
    "diagnose_group",
    "diagnose_once",
    "dialect_of",
    "differences",
    "format_json",
    "format_text",
    "in_the_way",
    "known_lag",
    "lag_of",
    "parse_offsets",
    "persistent_findings",
    "plan_assignment",
    "plan_reset",
    "plan_set",
    "plan_v08_reset",
    "plan_v08_set",
    "progress_findings",
    "read_diagnosis_input",
    "read_lag",
    "read_tree",
    "read_v07_snapshot",
    "read_v08_lag",
    "read_v08_snapshot",
    "require_dead",
    "require_nodes",
    "steps_for",
    "take_step",
    "total_lag",
    "verify_group",
    "wait_for_leaders",
    "wait_until_gone",
    "withheld",
    "write_changes",
    "write_durably",
]
