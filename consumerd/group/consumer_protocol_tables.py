"""The states of a member of a group of the consumer protocol (KIP-848, Kafka 4.0 and later), and their transitions.

Strategy: as `consumerd.group.coordinated_tables`: one table, looked up and never bypassed. What is *done* in a state is
in `consumerd.group.consumer_protocol`. Phases, causes and settings are those of `coordinated_tables`, too.

# Theory of operation

The coordinator itself assigns the partitions, and tells each member its own in the answers to heartbeats, which are the
only request of the membership. A heartbeat with the epoch 0 joins, one with -1 leaves, one with -2 leaves for a while
(static members). There is no generation that all members join at once: a change of the group reaches each member with
its next heartbeat. First the coordinator names fewer partitions to those that have to release some (RECONCILING); they
finish these, and name what they have left (ACKNOWLEDGING); then others are assigned what was released, and whatever
does not move continues all the time. A member's epoch rises when it has come to the coordinator's latest assignment.

These are the rules:

1. Every heartbeat names all: epoch, subscription, and what is held, also what is being drained. So an answer that was
   lost, or a request that was, changes nothing: the next one leads to the same. One is under way at a time.
2. A partition begins to flow when the answer to the *last* heartbeat that was sent names it. While a heartbeat is
   under way, or was lost, nothing begins: it said that the partition is not held, and the coordinator may take that for
   the acknowledgement of a release.
3. A partition that an answer does not name is drained, and counts as held until no handler holds anything of it and
   what was handled is committed. Then a heartbeat says so at once.
4. A drain ends before the coordinator stops waiting for us. It cannot have begun to wait before it answered the last
   heartbeat after which nothing was to be released, hence not before that one was sent: the rebalance timeout counts
   from there.
5. The lease counts from the *sending* of the last heartbeat that was answered well, and ends after the session
   timeout, or with the rebalance timeout of rule 4, whichever is first. The answers do not tell the coordinator's
   session timeout. Where the group's settings may be read, the shorter one counts; elsewhere ours must not be longer.
6. A member that the coordinator rejects (FENCED_MEMBER_EPOCH, UNKNOWN_MEMBER_ID), or whose lease ends, abandons
   everything (ABANDONING), and joins again with the epoch 0 when nothing is held. So does leaving wait.
7. A member that has just joined, or whose epoch or assignment has changed, sends a heartbeat each second for a while:
   what the others release with their next heartbeats would else wait for ours, and changes come in a row, as members
   start or are restarted one after the other.
8. Partitions are named by topic ids. One of an id that the metadata do not show yet waits for them; one of a topic that
   was created again waits until its namesake has been drained.

Why two members never deliver the same partition: the coordinator assigns it when its former owner has said that it does
not hold it (it does not: rules 1 to 3), has left (it holds nothing: rule 6), or was removed for its silence or slowness
(its lease is over: rules 4 and 5). Commits carry the epoch, and the coordinator refuses those of a removed member.
"""

from __future__ import annotations

from consumerd.group.coordinated_tables import Cause, Phase

PHASES: dict[tuple[Phase, Cause], Phase] = {
    (Phase.OUTSIDE, Cause.JOIN): Phase.JOINING,
    (Phase.JOINING, Cause.JOINED): Phase.STABLE,
    (Phase.JOINING, Cause.OUT): Phase.OUTSIDE,
    (Phase.STABLE, Cause.REVOKED): Phase.RECONCILING,
    (Phase.RECONCILING, Cause.REVOKED): Phase.RECONCILING,
    (Phase.ACKNOWLEDGING, Cause.REVOKED): Phase.RECONCILING,
    (Phase.RECONCILING, Cause.RELEASED): Phase.ACKNOWLEDGING,
    (Phase.ACKNOWLEDGING, Cause.ACKNOWLEDGED): Phase.STABLE,
    (Phase.STABLE, Cause.LOST): Phase.ABANDONING,
    (Phase.RECONCILING, Cause.LOST): Phase.ABANDONING,
    (Phase.ACKNOWLEDGING, Cause.LOST): Phase.ABANDONING,
    (Phase.DRAINING, Cause.LOST): Phase.ABANDONING,
    (Phase.ABANDONING, Cause.EMPTY): Phase.OUTSIDE,
    # A stop passes through DRAINING; a member that holds nothing leaves at once.
    (Phase.STABLE, Cause.STOP): Phase.DRAINING,
    (Phase.RECONCILING, Cause.STOP): Phase.DRAINING,
    (Phase.ACKNOWLEDGING, Cause.STOP): Phase.DRAINING,
    (Phase.DRAINING, Cause.EMPTY): Phase.LEAVING,
    (Phase.OUTSIDE, Cause.STOP): Phase.LEAVING,
    (Phase.JOINING, Cause.STOP): Phase.LEAVING,
    (Phase.LEAVING, Cause.GONE): Phase.LEFT,
}
