"""Groups seen and changed from outside: snapshots, findings, fixes, changed offsets. Nothing here is a member.

In: `read_v07_snapshot`, the `GroupSource` of a dialect, `diagnose`, `GroupDoctor`, `write_changes`. Out: snapshots,
findings and changes of nodes and offsets.

Files in reading order: snapshot, diagnosis, diagnosis_members, diagnosis_owners, diagnosis_offsets, diagnosis_progress,
findings, doctor, mending, lag, lag_times, logs, offset_plans, offset_file, changes, editing, writing, verification,
removal, errors.
"""
