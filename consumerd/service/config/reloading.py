"""The reload of the configuration: the comparison of a running configuration with a new one.

Strategy: the declaration of a key says how it changes in a running daemon. From these the reference is generated, and
by them a test checks the table of docs/operations.md. `compare` merges what a running daemon can take over into
its configuration; the keys that need a restart keep their values there, and are named. So the running configuration is
always the one that the process works by.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeVar

from consumerd.base.settings.processing import HandlerSection
from consumerd.base.settings.setting import BrokenRulesError, Reload, Section
from consumerd.service.config.model import Config
from consumerd.service.config.subscriptions import SubscriptionSection

_Table = TypeVar("_Table", bound=Section)


#: Key, with its table -> how it reloads.
RELOADS: Final[dict[str, Reload]] = {
    f"{name}.{key}": setting.reload or Reload.RESTART
    for name, table in Config.tables().items()
    for key, setting in table.fields.items()
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
    for table in Config.tables():
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
    changed = _changed(before, after)
    taken = [key for key in changed if _reload(before, after, table, key) is not Reload.RESTART]
    if not taken:
        return before, [], changed
    values = {key: getattr(after if key in taken else before, key) for key in before.fields}
    try:
        merged = type(before)(**values)
    except BrokenRulesError:  # they belong to keys that need a restart, as group.topics to group.coordination
        return before, [], changed
    return merged, taken, [key for key in changed if key not in taken]


def _changed(before: Section, after: Section) -> list[str]:
    return [key for key in before.fields if getattr(before, key) != getattr(after, key)]


def _reload(before: Section, after: Section, table: str, key: str) -> Reload:
    if key == "on_failure" and "retry_topic" in (getattr(before, key), getattr(after, key)):
        return Reload.RESTART  # each retry topic has a member of its own
    return RELOADS[f"{table}.{key}"]


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
                handler, own, kept = _compare_tables(before.handler, after.handler, "handler")
                section, keys = section.replace(handler=handler), [f"handler.{each}" for each in own]
                refused += [f"{table}.handler.{each}" for each in kept]
                by_how = {f"{table}.{each}": RELOADS[each] for each in keys}
            else:
                by_how = {f"{table}.{key}": RELOADS[f"subscriptions.{key}"]}
            for each, how in by_how.items():
                applied.setdefault(how, []).append(each)
        for key in left:
            inner = _changed(before.group, after.group) if key == "group" else []
            refused += [f"{table}.group.{each}" for each in inner] or [f"{table}.{key}"]
        merged.append(section)
    return tuple(merged)
