"""Everything that can be wrong with a daemon's configuration before it joins, found without joining.

Strategy: what the parts of the daemon are made of is made here as well, and not started: the subscription, the session,
the client, the handler. For `consumerd check`, and for a configuration that a running daemon is to take over.
"""

from __future__ import annotations

from collections.abc import Callable
from random import SystemRandom
from typing import Final, NamedTuple

from consumerd.base.clock import SystemClock
from consumerd.base.errors import ConfigError, ConsumerdError
from consumerd.service.config.build import build_session, build_settings, place_beside
from consumerd.service.config.build_handlers import build_handler
from consumerd.service.config.build_subscriptions import errors_of
from consumerd.service.config.build_v08 import build_client, fixed_partitions
from consumerd.service.config.model import Config, parse
from consumerd.service.config.problems import (
    ConfigProblemsError,
    Problem,
    TomlDocument,
    problem_of_error,
)
from consumerd.service.config.subscriptions import chosen_key
from consumerd.service.config.validation import InvalidValuesError, parse_valid_tables
from consumerd.service.daemon.endpoints import check_http
from consumerd.service.daemon.telemetry import check_telemetry


class Checked(NamedTuple):
    """The result of a check. `config` is set where all keys are valid, also where a part has a problem."""

    config: Config | None
    #: A phrase for each part that is valid.
    valid: list[str]
    problems: list[Problem]


def check_daemon(document: TomlDocument, source: str) -> Checked:
    """Check a document, together with the environment. Parts of tables that are invalid are not checked further."""
    problems: list[Problem] = []
    config = None
    try:
        checked = config = parse(document, source)
    except ConfigProblemsError as error:
        problems += error.problems
        try:
            in_tables = frozenset(each.table for each in problems if each.table is not None)
            checked = parse_valid_tables(Config, document, in_tables)
        except InvalidValuesError:
            return Checked(None, [], problems)
    invalid = {each.table for each in problems}
    what: list[str] = []
    for path, needed, check in _PARTS:
        if invalid.isdisjoint(needed):
            try:
                what.append(check(checked))
            except ConsumerdError as error:
                problems.append(problem_of_error(error, path, source, document))
    valid = [", ".join(filter(None, what))]
    if invalid.isdisjoint(("subscriptions", "group", "rebalance", "fetch", "commit")):
        for number, each in enumerate(checked.subscriptions):
            what = [f"subscription {each.name}"]
            subscribed = (chosen_key(each),), _check_subscription
            for inner, check in ((("handler", "name"), _check_handler), subscribed):
                try:
                    with errors_of(each.name):
                        what.insert(1, check(checked.by_subscription()[each.name]))
                except ConsumerdError as error:
                    problems.append(problem_of_error(error, ("subscriptions", number, *inner), source, document))
            valid.append(f"{what[0]}: {', '.join(what[1:])}")
    return Checked(config, valid, problems)


def check_parts(config: Config) -> None:
    """Check a valid configuration as `check_daemon` does. Raises ConsumerdError for the first problem."""
    for rule in config.rules():  # it may be a mixture of two
        raise ConfigError(f"{rule if isinstance(rule, str) else rule.sentence}.")
    for _, _, check in _PARTS:
        check(config)
    for name, own in config.by_subscription().items():
        with errors_of(name):
            _check_subscription(own)
            _check_handler(own)


def _check_subscription(config: Config) -> str:
    settings = build_settings(config, clock=SystemClock(), rng=SystemRandom())
    what = settings.subscription.format()
    if config.group.coordination != "zookeeper":
        partitions = fixed_partitions(config.group)
        what = ", ".join(map(str, partitions)) or f"{what} coordinated by a broker"
    return f"group {settings.group}, {what}"


def _check_zookeeper(config: Config) -> str:
    if config.needs_session:
        build_session(config.zookeeper, clock=SystemClock(), rng=SystemRandom())
    return ""


def _check_kafka(config: Config) -> str:
    if config.needs_brokers or config.group.dialect != "0.7":
        build_client(config, clock=SystemClock(), rng=SystemRandom())
    return ""


def _check_handler(config: Config) -> str:
    build_handler(config, clock=SystemClock(), rng=SystemRandom())
    section = config.handler
    if section.dead_letter_topic is None:
        return f"handler {section.name}"
    return f"handler {section.name} (letters too large for {section.dead_letter_topic} in {place_beside(section)})"


def _check_http(config: Config) -> str:
    check_http(config.health)
    return ""


def _check_telemetry(config: Config) -> str:
    check_telemetry(config.telemetry)
    return ""


#: The subject of each check, the tables that it reads, and the check. It returns a phrase for what is valid.
_PARTS: Final[tuple[tuple[tuple[str, ...], frozenset[str], Callable[[Config], str]], ...]] = (
    (("group",), frozenset({"group", "rebalance", "fetch", "commit"}), _check_subscription),
    (("zookeeper",), frozenset({"group", "zookeeper", "commit"}), _check_zookeeper),
    (("kafka",), frozenset({"group", "kafka", "fetch"}), _check_kafka),
    (("handler", "name"), frozenset({"handler"}), _check_handler),
    (("health",), frozenset({"health"}), _check_http),
    (("telemetry",), frozenset({"telemetry"}), _check_telemetry),
)
