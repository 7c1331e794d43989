"""The content of `/status.json` and the status page: plain values, made on request.

Strategy: one document, which the page renders and scripts read. Nothing of the configuration is in it but names, so it
holds no secrets; passwords within what errors say are left out.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from consumerd import __version__
from consumerd.base.clock import iso_time
from consumerd.base.partition import NO_BROKER, UNKNOWN_LOG, LogId
from consumerd.member.consumer.owned_partition import OwnedView
from consumerd.member.consumer.running_member import RunningMember
from consumerd.member.consumer.stats import SeenLogChange
from consumerd.service.daemon.group_view import GroupSeen
from consumerd.service.daemon.memory import resident_bytes
from consumerd.service.daemon.monitor import Monitor
from consumerd.service.daemon.recent import RECENT
from consumerd.service.daemon.subscription_monitor import SubscriptionMonitor

if TYPE_CHECKING:
    from consumerd.member.consumer.blocked import BlockedClaim


async def read_status(monitor: Monitor) -> dict[str, Any]:
    """The document. Keys that have no value yet are null."""
    watches = [_no_group() if part.group_watch is None else part.group_watch.look() for part in monitor.subscriptions]
    groups = await asyncio.gather(*watches)
    subscriptions = [_subscription(monitor, *each) for each in zip(monitor.subscriptions, groups, strict=True)]
    main, member, now = subscriptions[0], monitor.main.member, monitor.clock.monotonic()
    rebalances = [
        {"subscription": each["name"], **rebalance} for each in subscriptions for rebalance in each.pop("rebalances")
    ]
    document: dict[str, Any] = {
        "version": __version__,
        "group": main["group"],
        "consumer_id": main["consumer_id"],
        "time": iso_time(monitor.clock.wall()),
        "started": iso_time(monitor.started_wall),
        "uptime_seconds": round(now - monitor.started, 1),
        "alive": monitor.sick is None,
        "ready": not monitor.unready,
        "not_ready_because": monitor.unready,
        "session": None if member is None else {"up": member.in_session},
        "memory": None if member is None else {"used": member.budget.used, "limit": member.budget.limit},
        "process_memory": resident_bytes(),
        "totals": _sum_of([each["totals"] for each in subscriptions]),
        "partitions": [
            {"subscription": each["name"], **row} for each in subscriptions for row in each.pop("partitions")
        ],
        "members": main["members"],
        "rebalances": sorted(rebalances, key=lambda each: each["time"], reverse=True),
        "subscriptions": subscriptions,
        "errors": [
            {"time": iso_time(line.at), "level": line.level, "event": line.event, "fields": line.fields}
            for line in RECENT
        ],
        "history": _history(monitor),
    }
    return document


async def _no_group() -> None:
    """Return nothing: there is no member yet."""


def _subscription(monitor: Monitor, part: SubscriptionMonitor, seen: GroupSeen | None) -> dict[str, Any]:
    """Return the status of one subscription; its partitions and rebalances stand beside those of the others."""
    member, health = part.member, part.health
    return {
        "name": part.name,
        "group": part.group,
        "consumer_id": None if member is None else member.settings.consumer_id,
        "topics": None if member is None else member.settings.subscription.format(),
        "handler": part.config.handler.name,
        "ready": not health.unready,
        "not_ready_because": health.unready,
        "totals": None if member is None else _totals(part, member),
        "partitions": [] if member is None else _partitions(monitor, part, member),
        "members": None if seen is None else _members(monitor, part, seen),
        "rebalances": [] if member is None else _rebalances(monitor, member),
    }


def _sum_of(totals: list[dict[str, int] | None]) -> dict[str, int] | None:
    known = [each for each in totals if each is not None]
    names = dict.fromkeys(name for each in known for name in each)
    return {name: sum(each.get(name, 0) for each in known) for name in names} if known else None


def _totals(part: SubscriptionMonitor, member: RunningMember[Any]) -> dict[str, int]:
    counts = part.handler_counts
    return {
        **member.stats.totals(),
        "fetched": member.fetched.messages,
        "handler_failures": counts.failures.total(),
        "handler_retries": counts.retries.total(),
        "skipped": counts.skipped.total(),
        "dead_lettered": counts.dead_lettered.total(),
        "deferred": counts.deferred.total(),
    }


def _partitions(monitor: Monitor, part: SubscriptionMonitor, member: RunningMember[Any]) -> list[dict[str, Any]]:
    hung, busy = set(part.health.hung), part.health.busy()
    views = {view.partition: view for view in member.views()}
    blocked, now = member.blocked or {}, monitor.clock.monotonic()
    away = dict.fromkeys(member.assigned, "claiming") | dict.fromkeys(part.lags(member), "session lost")
    away |= dict.fromkeys(member.unregistered, "no broker")
    unreachable = set(part.health.unreachable_partitions)
    rows = []
    for partition in sorted({*views, *away}):
        view, claim = views.get(partition), blocked.get(partition)
        position = None if view is None else view.position
        state = _state(view, is_hung=partition in hung, is_unreachable=partition in unreachable)
        counts = member.stats.of(partition)
        lag = None if view is None else part.lag.of(view, counts.handled_at)
        rows.append(
            {
                "topic": partition.topic,
                "partition": partition.name,
                "state": "blocked" if claim is not None else state or away[partition],
                "blocked": None if claim is None else _blocked(claim, now),
                "not_consumed_because": None if position is not None or claim else member.why_not_consumed(partition),
                "log_change": None if counts.log_change is None else _log_change(monitor, counts.log_change),
                "paused": view is not None and view.paused,
                "position": position,
                "committed": None if view is None else view.committed,
                "lag": None if lag is None else lag.amount,
                "lag_unit": "messages" if partition.broker == NO_BROKER else "bytes",
                "lag_held_back": None if lag is None else lag.held_back,
                "lag_seconds": None if lag is None or lag.age is None else round(lag.age, 1),
                "since_handled_seconds": None if lag is None else round(lag.since_handled, 1),
                "handled": counts.messages,
                "last_handled": None if counts.handled_at is None else iso_time(monitor.wall_of(counts.handled_at)),
                "queued_batches": 0 if view is None else view.queued,
                "held_bytes": 0 if view is None else view.held_bytes,
                "busy_seconds": round(busy[partition], 1) if partition in busy else None,
            }
        )
    return rows


def _blocked(claim: BlockedClaim, now: float) -> dict[str, Any]:
    """Return who is in the way of a claim, null as long as it is not known; or why the claim is not permitted."""
    owner, session, denied = claim.holder
    return {
        "owner": owner,
        "session": None if session is None else f"{session:#x}",
        "seconds": round(now - claim.since, 1),
        "reason": denied,
    }


def _log_change(monitor: Monitor, seen: SeenLogChange) -> dict[str, Any]:
    """Return how a log became another one since the member started; null for what is unknown."""
    change = seen.change
    return {
        "kind": change.kind.value,
        "time": iso_time(monitor.wall_of(seen.at)),
        "offset": change.offset,
        "former": _identity(change.former),
        "now": _identity(change.now),
        "continued_at": seen.continued_at,
        "messages_gone": change.messages_gone,
    }


def _identity(log: LogId) -> str | None:
    return None if log == UNKNOWN_LOG else str(log)


def _state(view: OwnedView | None, *, is_hung: bool, is_unreachable: bool) -> str | None:
    """Return the state of a partition that is owned."""
    if view is None:
        return None
    if is_hung:
        return "hung"
    if is_unreachable:
        return "unreachable"
    if view.position is None:
        return "starting"
    return "paused" if view.paused else "consuming"


def _members(monitor: Monitor, part: SubscriptionMonitor, seen: GroupSeen) -> dict[str, Any]:
    """Return the group; null for what is not known of it yet."""
    state = seen.state
    if state is None:
        return {"time": None, "live": None, "not_live": None, "unowned": None, "failure": seen.failure}
    return {
        "time": iso_time(monitor.wall_of(state.at)),
        "live": [
            {"id": name, "partitions": count, "this": part.is_this(name)} for name, count in state.members.items()
        ],
        "not_live": [{"id": name, "partitions": count} for name, count in state.strangers.items()],
        "unowned": state.unowned,
        "failure": seen.failure,
    }


def _rebalances(monitor: Monitor, member: RunningMember[Any]) -> list[dict[str, Any]]:
    return [
        {
            "time": iso_time(monitor.wall_of(each.ended)),
            "seconds": round(each.seconds, 3),
            "partitions": each.partitions,
            "gained": list(map(str, each.gained)),
            "lost": list(map(str, each.lost)),
        }
        for each in reversed(member.stats.history)
    ]


def _history(monitor: Monitor) -> dict[str, Any]:
    """Return the rates and lags of the last minutes, oldest first."""
    points = [*monitor.history, monitor.point()]
    rates = [
        round((after.messages - before.messages) / max(after.at - before.at, 0.5), 1)
        for before, after in pairwise(points)
    ]
    return {
        "seconds": [round(after.at - points[-1].at, 1) for after in points[1:]],
        "messages_per_second": rates,
        "lag": [after.lag for after in points[1:]],
    }
