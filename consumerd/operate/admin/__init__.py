"""Groups seen and changed from outside: snapshots, findings, fixes, changed offsets. Nothing here is a member.

In: `read_v07_snapshot`, the `GroupSource` of a dialect, `diagnose`, `GroupDoctor`, `write_changes`. Out: snapshots,
findings and changes of nodes and offsets.

Files in reading order: snapshot, diagnosis, diagnosis_members, diagnosis_owners, diagnosis_offsets, findings, doctor,
mending, lag, logs, offset_plans, offset_file, changes, editing, verification, removal, errors.
"""
