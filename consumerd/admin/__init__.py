"""Looking at other people's groups and mending them: surveys, findings, changed offsets. Nobody here is a member."""

from consumerd.admin.changes import Change, ChangePlanner, Target, TargetKind
from consumerd.admin.diagnosis import diagnose, lasting
from consumerd.admin.diagnosis_offsets import Look, progress_findings
from consumerd.admin.editing import backup_of, in_the_way, write_changes
from consumerd.admin.errors import (
    BrokerAnswerError,
    ChangedMeanwhileError,
    CheckFailedError,
    OffsetFileError,
    RefusedError,
)
from consumerd.admin.findings import Finding, Fix, Kind, Nudge, Removal
from consumerd.admin.lag import PartitionLag, lag_of, total_lag
from consumerd.admin.logs import BrokerLogs, LogRange, NoAnswer, OffsetsQuestion
from consumerd.admin.mending import describe_step, steps_for, take_step, withheld
from consumerd.admin.offset_file import GroupOffsets, format_json, format_text, parse_offsets, write_durably
from consumerd.admin.removal import as_backup, delete_tree, read_tree, require_dead
from consumerd.admin.survey import Survey, Topics, survey_group
from consumerd.admin.verification import Difference, differences

__all__ = [
    "BrokerAnswerError",
    "BrokerLogs",
    "Change",
    "ChangePlanner",
    "ChangedMeanwhileError",
    "CheckFailedError",
    "Difference",
    "Finding",
    "Fix",
    "GroupOffsets",
    "Kind",
    "LogRange",
    "Look",
    "NoAnswer",
    "Nudge",
    "OffsetFileError",
    "OffsetsQuestion",
    "PartitionLag",
    "RefusedError",
    "Removal",
    "Survey",
    "Target",
    "TargetKind",
    "Topics",
    "as_backup",
    "backup_of",
    "delete_tree",
    "describe_step",
    "diagnose",
    "differences",
    "format_json",
    "format_text",
    "in_the_way",
    "lag_of",
    "lasting",
    "parse_offsets",
    "progress_findings",
    "read_tree",
    "require_dead",
    "steps_for",
    "survey_group",
    "take_step",
    "total_lag",
    "withheld",
    "write_changes",
    "write_durably",
]
