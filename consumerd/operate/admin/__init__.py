"""Groups seen and changed from outside: snapshots, findings, fixes, changed offsets. Nothing here is a member.

In: a `GroupSource`, which hides the dialect. Out: snapshots, findings and changes of nodes and offsets.

Files in reading order: snapshot, diagnosis, diagnosis_members, diagnosis_owners, diagnosis_offsets, findings,
group_source, doctor, lag, logs, offset_plans, offset_file, changes, editing, verification, removal, errors.
"""
