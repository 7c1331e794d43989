"""What is wrong with a group of Kafka 0.8 or later, coordinated in ZooKeeper or by a broker.

Strategy: what groups of 0.7 have, too, is looked at by the same code; here is what they do not have. Where a broker
coordinates, it keeps the members' books and nobody can stand in another's way, so that what is left to see are
groups that come to no end of rebalancing, partitions that the leader deals to nobody, and owners that do not work.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from consumerd.admin.diagnosis_members import foreign_findings, member_findings
from consumerd.admin.diagnosis_offsets import offset_findings, silence
from consumerd.admin.diagnosis_owners import owner_findings
from consumerd.admin.findings import Finding, Kind, capital, listed
from consumerd.admin.logs import NoAnswer
from consumerd.admin.v08.consumer_groups import MOVING
from consumerd.admin.v08.snapshot import Coordinator, V08Survey
from consumerd.partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from consumerd.admin.diagnosis_offsets import Look

#: States of groups whose members have no partitions just now (`AwaitingSync` until 1.0).
_REBALANCING: Final = frozenset({"PreparingRebalance", "CompletingRebalance", "AwaitingSync"})
_STABLE: Final = "Stable"


def diagnose_v08(survey: V08Survey, look: Look) -> list[Finding]:
    """All findings of one look. Those of `PASSING` kinds may be a rebalance or an election that is under way."""
    by_broker = survey.coordinator is Coordinator.BROKER
    return [
        *(_broker_findings(survey) if by_broker else (*member_findings(survey), *owner_findings(survey))),
        *offset_findings(survey, look.ranges, look.kept),
        *_leader_findings(look),
        *_not_checked(survey, look),
        *(() if by_broker else foreign_findings(survey)),
    ]


def store_findings(first: Look, second: Look) -> Iterable[Finding]:
    """Offsets in ZooKeeper and at a broker that do not follow each other; both looks may be the same one.

    A store is left behind if it did not reach, at the second look, where the other was at the first.
    """
    for partition, kept in second.kept.items():
        here = second.survey.view.offsets.get(partition)
        before = first.survey.view.offsets.get(partition), first.kept.get(partition)
        if here is None or here == kept or before[0] is None or before[1] is None:
            continue
        if min(here, kept) < max(before[0], before[1]):
            behind = "brokers keep" if kept < here else "ZooKeeper has"
            yield Finding(
                Kind.STORES_DIFFER,
                str(partition),
                f"ZooKeeper has the offset {here}, and brokers keep {kept}, {abs(here - kept)} messages apart: nobody "
                f"commits what {behind}. Members with offsets.storage=zookeeper start at the first, those with kafka "
                "at the second; with dual.commit.enabled, at the greater.",
                "If the group has moved, the older offset is history; see that no member uses it any more. Else stop "
                "the group, and `consumerd migrate offsets` or `consumerd offsets set` makes them one.",
            )


# -- where a broker coordinates


def _broker_findings(survey: V08Survey) -> Iterable[Finding]:
    if not survey.view.members and not survey.view.problems:
        yield Finding(
            Kind.NO_MEMBERS,
            survey.group,
            "The group has no members that a broker knows, so nobody owns or should own anything.",
            "Start a member; or, if the group is dead, `consumerd group delete`. Old consumers that commit to brokers "
            "(offsets.storage=kafka) are members in ZooKeeper: look there with --zookeeper.",
        )
    if survey.state in _REBALANCING:
        members = [survey.clients.get(name, name) for name in survey.view.members]
        yield Finding(
            Kind.REBALANCING,
            survey.group,
            f"The group is rebalancing ({survey.state}), and its {len(members)} members have nothing until that is "
            f"over: {listed(members)}. One that does not come back from its handler keeps all waiting until its "
            "max.poll.interval.ms is over; one that joins and leaves again and again starts it anew.",
            "Look at the logs of the members for who is late or restarts, and stop that one.",
        )
    if survey.moving is not None and survey.state in MOVING:
        late = [survey.clients.get(name, name) for name in survey.moving]
        yield Finding(
            Kind.REBALANCING,
            survey.group,
            f"The group is rebalancing ({survey.state}): its coordinator has dealt anew, and {len(late)} of "
            f"{len(survey.view.members)} members have not given up what others get, or not taken what they got: "
            f"{listed(late)}. The others go on meanwhile. A member that does not come back from its handler is put out "
            "when its max.poll.interval.ms is over.",
            "Look at the logs of these members, and restart one that hangs.",
        )
    if survey.state != _STABLE or any(member.subscription is None for member in survey.view.members.values()):
        return  # what the members have, or want, is not told
    for topic, numbers in survey.subscribed.items():
        for number in numbers:
            partition = TopicPartition.numbered(topic, number)
            if partition not in survey.view.owners:
                yield Finding(
                    Kind.UNOWNED,
                    str(partition),
                    f"Nobody owns it, though members subscribe to its topic: {_leader(survey)} did not deal it. The "
                    f"partition may be younger than what the {_dealer(survey)} knows of the cluster, or members do not "
                    "agree on what they subscribe to.",
                    "Wait for its next look at the metadata (metadata.max.age.ms, 5 minutes by default); if that does "
                    "not help, restart a member, so that all is dealt anew.",
                )


def _leader(survey: V08Survey) -> str:
    return f"the group's {_dealer(survey)} ({survey.assignor})" if survey.assignor else f"the group's {_dealer(survey)}"


def _dealer(survey: V08Survey) -> str:
    return "leader" if survey.moving is None else "coordinator"


# -- the cluster


def _leader_findings(look: Look) -> Iterable[Finding]:
    for partition in _existing(look):
        known = look.topics.get(partition.topic, {}).get(partition.partition)
        if known is not None and known.leader is None:
            replicas = ", ".join(map(str, known.replicas))
            yield Finding(
                Kind.NO_LEADER,
                str(partition),
                "The partition has no leader, so nobody can write to it or read it; its owner waits. It is on the "
                f"brokers {replicas}.",
                "Bring one of these brokers back, one that was in sync if possible; see `consumerd topics describe`.",
            )


def _not_checked(survey: V08Survey, look: Look) -> Iterable[Finding]:
    reasons: Counter[str] = Counter()
    for partition, answer in look.ranges.items():
        known = look.topics.get(partition.topic, {}).get(partition.partition)
        if isinstance(answer, NoAnswer) and (known is None or known.leader is not None):
            reasons[answer.reason] += 1
    for reason, count in reasons.items():
        yield silence("brokers", reason, count)
    # Each fault has one sentence among the problems, and comes first; it has a finding of its own.
    for problem in (*survey.view.problems[len(survey.view.faults) :], *look.unknown):
        yield Finding(
            Kind.NOT_CHECKED,
            survey.group,
            f"{capital(problem)}.",
            "What follows from it is not in these findings.",
        )


def _existing(look: Look) -> list[TopicPartition]:
    return [partition for partition in look.survey.partitions() if look.survey.exists(partition)]
