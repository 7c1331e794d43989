"""What somebody does to groups, offsets and topics of others (`admin`), and the move to another cluster (`migrate`).

In: a session or a client, and a target. Out: snapshots, findings, plans, and the changes of a plan.
"""
