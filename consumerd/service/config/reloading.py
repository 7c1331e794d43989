"""The reload of the configuration: a table of how each key changes in a running daemon, and the comparison by it.

Strategy: every key that the daemon reads is in `RELOADS` (a test checks that), from which the reference is generated
and by which a test checks the table of docs/operations.md. `compare` merges what a running daemon can take over into
its configuration; the keys that need a restart keep their values there, and are named. So the running configuration is
always the one that the process works by.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from consumerd.service.settings.setting import BrokenRulesError, Section

if TYPE_CHECKING:
    from consumerd.service.config.model import Config
    from consumerd.service.settings.subscriptions import SubscriptionSection
    from consumerd.service.settings.work import HandlerSection

_Table = TypeVar("_Table", bound=Section)


class Reload(Enum):
    """The way in which a change of a key takes effect. The value is the wording of the documentation."""

    AT_ONCE = "at once"
    HANDLER = "with a new handler"
    SUBSCRIPTION = "by registering again"
    RESTART = "after a restart"


#: By table. What `consumerd spark` reads is not the daemon's.
_BY_TABLE: Final[dict[str, dict[str, Reload]]] = {
    "group": {
        "topics": Reload.SUBSCRIPTION,
        "whitelist": Reload.SUBSCRIPTION,
        "blacklist": Reload.SUBSCRIPTION,
        "streams": Reload.SUBSCRIPTION,
        **dict.fromkeys(
            (
                "id",
                "coordination",
                "dialect",
                "consumer_id",
                "partitions",
                "offsets",
                "assignor",
                "roundrobin_as",
                "session_timeout",
                "heartbeat_interval",
                "rebalance_timeout",
                "instance_id",
            ),
            Reload.RESTART,
        ),
    },
    "zookeeper": dict.fromkeys(
        ("connect", "allow_empty", "session_timeout", "connection_timeout", "auth", "auth_file", "acl", "tls", "sasl"),
        Reload.RESTART,
    ),
    "kafka": dict.fromkeys(("bootstrap", "client_id", "connection_timeout", "tls", "sasl"), Reload.RESTART),
    "rebalance": dict.fromkeys(("drain_timeout", "retry_interval", "reconcile_interval"), Reload.RESTART),
    "fetch": dict.fromkeys(
        (
            "size",
            "max_size",
            "idle_backoff",
            "max_wait",
            "min_bytes",
            "budget",
            "partition_budget",
            "initial",
            "out_of_range",
            "log_changed",
            "isolation",
            "corrupt",
            "oversize",
            "socket_timeout",
            "connect_timeout",
        ),
        Reload.RESTART,
    ),
    "commit": {
        "interval": Reload.AT_ONCE,
        **dict.fromkeys(("metadata", "retention", "version"), Reload.RESTART),
    },
    "handler": {
        "max_rate": Reload.AT_ONCE,
        **dict.fromkeys(
            (
                "name",
                "options",
                "decoder",
                "decoder_options",
                "middleware",
                "middleware_options",
                "max_batch",
                "max_bytes",
                "linger",
                "order",
                "concurrency",
                "processes",
                "max_attempts",
                "initial_backoff",
                "max_backoff",
                "on_failure",
                "on_disk_full",
                "dead_letter",
                "dead_letter_file_size",
                "dead_letter_max_size",
                "dead_letter_topic",
                "dead_letter_as",
                "timeout",
            ),
            Reload.HANDLER,
        ),
    },
    "subscriptions": {
        **dict.fromkeys(("name", "group"), Reload.RESTART),
        **dict.fromkeys(("topics", "whitelist", "blacklist", "streams"), Reload.SUBSCRIPTION),
        "handler": Reload.HANDLER,
    },
    "daemon": dict.fromkeys(("stop_timeout", "stall_warning", "loop"), Reload.RESTART),
    "log": dict.fromkeys(("level", "format"), Reload.AT_ONCE),
    "health": {
        "hung_after": Reload.AT_ONCE,
        **dict.fromkeys(("listen", "metrics", "status", "token", "token_file", "tls"), Reload.RESTART),
    },
    "telemetry": dict.fromkeys(("otlp_endpoint", "traces", "metrics", "metrics_interval"), Reload.RESTART),
    "metrics": dict.fromkeys(("partition_labels", "lag_interval", "summary_interval"), Reload.AT_ONCE),
}

#: Key, with its table -> how it reloads.
RELOADS: Final[dict[str, Reload]] = {
    f"{table}.{key}": how for table, keys in _BY_TABLE.items() for key, how in keys.items()
}


class ConfigChanges(NamedTuple):
    """The changes of a new configuration. Keys are named with their tables, in the order of the model."""

    #: The running configuration with all that it can take over.
    merged: Config
    #: The keys that it takes over, by how.
    applied: dict[Reload, list[str]]
    #: The keys that need a restart.
    refused: list[str]


def compare(running: Config, new: Config) -> ConfigChanges:
    """Compare the configuration of a running daemon with a new, valid one."""
    applied: dict[Reload, list[str]] = {}
    refused: list[str] = []
    tables: dict[str, Any] = {}
    for table in _BY_TABLE:
        if table == "subscriptions":
            tables[table] = _compare_subscriptions(running, new, applied, refused)
            continue
        before, after = getattr(running, table), getattr(new, table)
        tables[table], taken, left = _compare_tables(before, after, table)
        for key in taken:
            applied.setdefault(RELOADS[f"{table}.{key}"], []).append(f"{table}.{key}")
        refused += [f"{table}.{key}" for key in left]
    return ConfigChanges(running.replace(**tables), applied, refused)


def same_handler(before: HandlerSection, after: HandlerSection) -> HandlerSection:
    """Return `before` with the keys of `after` that need no new handler."""
    at_once = [key for key in before.fields if RELOADS[f"handler.{key}"] is Reload.AT_ONCE]
    return before.replace(**{key: getattr(after, key) for key in at_once})


def _compare_tables(before: _Table, after: _Table, table: str) -> tuple[_Table, list[str], list[str]]:
    """Return the merged table, its keys that are taken over, and those that need a restart."""
    changed = [key for key in before.fields if getattr(before, key) != getattr(after, key)]
    taken = [key for key in changed if RELOADS[f"{table}.{key}"] is not Reload.RESTART]
    if not taken:
        return before, [], changed
    values = {key: getattr(after if key in taken else before, key) for key in before.fields}
    try:
        merged = type(before)(**values)
    except BrokenRulesError:  # they belong to keys that need a restart, as group.topics to group.coordination
        return before, [], changed
    return merged, taken, [key for key in changed if key not in taken]


def _compare_subscriptions(
    running: Config, new: Config, applied: dict[Reload, list[str]], refused: list[str]
) -> tuple[SubscriptionSection, ...]:
    """Return the merged subscriptions. A change of their names needs a restart, and then no key is taken over."""
    if [each.name for each in running.subscriptions] != [each.name for each in new.subscriptions]:
        refused.append("subscriptions")
        return running.subscriptions
    merged = []
    for before, after in zip(running.subscriptions, new.subscriptions, strict=True):
        table = f"subscriptions.{before.name}"
        section, taken, left = _compare_tables(before, after, "subscriptions")
        for key in taken:
            if key == "handler":
                keys = [f"handler.{each}" for each in _compare_tables(before.handler, after.handler, "handler")[1]]
                by_how = {f"{table}.{each}": RELOADS[each] for each in keys}
            else:
                by_how = {f"{table}.{key}": RELOADS[f"subscriptions.{key}"]}
            for each, how in by_how.items():
                applied.setdefault(how, []).append(each)
        refused += [f"{table}.{'group.id' if key == 'group' else key}" for key in left]
        merged.append(section)
    return tuple(merged)
