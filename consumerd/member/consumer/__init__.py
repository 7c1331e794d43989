"""The consumer: ties session, membership, fetching, delivery and commits together (ring 1).

In: settings, a handler and a session, or a client of brokers. Out: batches at the handler, committed offsets, and
events of its membership.

Files in reading order: composition, backends, backends_v08, running_member, consumer, coordinated, fixed, coordination,
snapshot, blocked, group_requests, partitions, owned_partition, partition_work, start_offsets, fence, commits, sinks,
streams, connector, simple, config, settings, controls, listeners, member_run, missing_topics, taken_id,
stats, errors.

Easy to miss:

- JVM members delete owner nodes by path, not by session. Owned nodes are therefore watched and verified.
- JVM members read a partition's offset *before* they claim it: messages whose offset we commit between that read and
  our release are delivered again there. Our members read the offset after the claim, so nothing repeats between them.
- A restart of ZooKeeper gives every session its full timeout again, those of dead processes too, and the timeout of a
  former process may have been longer than ours: the wait for our own dead id node counts uninterrupted connected time.
- A remembered position is invalid once another member has committed, also within the same session.
- A rebalance timeout below the session timeout leaves no lease between two heartbeats; the configuration rejects it.
- Brokers before 2.2 count a JoinGroup request without a member id as one more member if the client cancels it:
  partitions are assigned to that member, and it does not read them.
- A coordinator holds back a JoinGroup, and all later requests of that connection, until every member has joined: a
  member uses a separate connection for it.
- A commit that waits for its coordinator may outlast its member's generation, and must not be sent in the next one's
  name.
- A handler may swallow its cancellation: the flow of a partition ends because its lane is closed.
- A stream holds a batch for a long time, so each of its messages is fenced, and a drain ends at a boundary of the outer
  set: if half of a compressed message were released, the next owner would repeat the first half.
- `async for` over available items never suspends: an iterator has to yield to the event loop explicitly.
"""
