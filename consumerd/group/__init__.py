"""Pure decisions of a consumer group: the owner of each partition, and the next actions of a member.

In: events, or the members and topics of a group. Out: actions, or the owner of each partition.

Files in reading order: assignment, assignors, rules, target_assignment, membership_tables, shared_events, events,
membership, membership_holdings, membership_snapshots, coordinated_tables, coordinated_events, coordinated_base,
coordinated, consumer_protocol_tables, consumer_protocol.

Easy to miss:

- 0.7 sorts partitions and streams **as strings**: `0-10` comes before `0-2`.
- "roundrobin" depends on all topics of the group, also those to which only other members subscribe: a snapshot reads
  those too.
- Old consumers of 0.8.2 to 0.11 and those of 1.x sort by hashes of different strings in "roundrobin": no member can
  agree with both.
- JVM members make their last attempt 6 s after the trigger, then stop. So all drains of a rebalance share one deadline
  of 4 s, and a release later than 5 s is followed by a nudge. Where that deadline passes before a snapshot could be
  taken (ZooKeeper was unavailable), drains have their full time from the snapshot on, since a nudge follows in any
  case.
- In a group of the consumer protocol a heartbeat that does not name a partition releases it: nothing may begin to flow
  while such a heartbeat is under way, or was lost.
- A nudge must contain `{ }`, since 0.8 a subscription to nothing: an id node with empty data or a topic with 0 streams
  breaks every JVM member's rebalance.
"""
