"""From the configuration to the members of a daemon: the settings of each subscription's, and their ids.

Strategy: each member is made as if it were the only one of its daemon. Its id is that of the main subscription's
member, an underscore, and the name of its subscription: so the ids of a daemon are next to each other in a list, and
are as stable as that of the main one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

from consumerd.base.errors import ConfigError, ConsumerdError
from consumerd.base.ports import Clock
from consumerd.member.consumer.settings import ConsumerSettings
from consumerd.service.config.build import build_settings
from consumerd.service.config.model import Config
from consumerd.service.config.subscriptions import MAIN
from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.values import configured_consumer_id


@contextmanager
def errors_of(name: str) -> Iterator[None]:
    """Name the subscription in errors of the objects made for it; errors of the main one name `[group]`."""
    try:
        yield
    except ConsumerdError as error:
        if name != MAIN:
            sentence = str(error)
            if sentence.startswith(("group.", "handler.")):
                sentence = f"subscriptions.{name}.{sentence.removeprefix('group.')}"
            else:
                sentence = f"subscription {name!r}: {sentence}"
            error.args = (sentence, *error.args[1:])
        raise


def build_members(config: Config, *, clock: Clock, rng: Random) -> dict[str, ConsumerSettings]:
    """The settings of each member, by subscription, the main one first. Raises ConfigError."""
    configs = config.by_subscription()
    main = build_settings(configs[MAIN], clock=clock, rng=rng)
    ours = main.consumer_id.removeprefix(f"{main.group}_")
    members = {MAIN: main}
    for name, own in configs.items():
        if name != MAIN:
            with errors_of(name):
                members[name] = _named(build_settings(own, clock=clock, rng=rng), f"{ours}_{name}", main)
    return {
        name: replace(
            each,
            siblings=frozenset(
                other.consumer_id for other in members.values() if other is not each and other.group == each.group
            ),
        )
        for name, each in members.items()
    }


def _named(settings: ConsumerSettings, consumer_id: str, main: ConsumerSettings) -> ConsumerSettings:
    try:
        name = configured_consumer_id(settings.group, consumer_id)
    except RegistryError as error:
        raise ConfigError(f"{error}.") from error
    return replace(settings, consumer_id=name, fixed_id=main.fixed_id)
