"""Custom delete policies, by name (`log.delete.policies`); age and size have properties of 0.7.

Strategy: a policy is made once per log by a factory `(topic, argument) -> DeletePolicy`, which is an entry point of the
group `consumerd.delete_policies`, or `module:attribute`. Names are resolved when the configuration is read, so that a
wrong one is an error at the start; an error of a factory for one topic affects that topic alone.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from consumerd.base.errors import ConfigError, did_you_mean, reason_of
from consumerd.storage import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from consumerd.storage import DeletePolicy

GROUP = "consumerd.delete_policies"


@dataclass(frozen=True, slots=True)
class PolicyFactory:
    """One entry of `log.delete.policies`; `argument` is what followed `name=`, "" without it."""

    name: str
    argument: str
    make: Callable[[str, str], DeletePolicy]

    def policy(self, topic: str) -> DeletePolicy:
        """Return the policy for a log of `topic`. Raises StorageError."""
        try:
            policy = self.make(topic, self.argument)
        except Exception as error:
            raise StorageError(
                f"the delete policy {self.name!r} failed for topic {topic}: {reason_of(error)}"
            ) from error
        if not callable(getattr(policy, "deletable", None)):
            raise StorageError(
                f"the delete policy {self.name!r} returned a {type(policy).__name__}, which has no method `deletable`"
            )
        return policy


def load_policies(name: str, text: str) -> tuple[PolicyFactory, ...]:
    """Load the factories of property `name`, listed as `name,name=argument,module:attribute`. Raises ConfigError."""
    entries = [entry.strip().partition("=") for entry in text.split(",") if entry.strip()]
    return tuple(PolicyFactory(entry, argument.strip(), _find(name, entry)) for entry, _, argument in entries)


def _find(name: str, entry: str) -> Callable[[str, str], DeletePolicy]:
    try:
        if ":" in entry:
            module, _, attribute = entry.partition(":")
            found = getattr(importlib.import_module(module), attribute)
        else:
            known = {point.name: point for point in entry_points(group=GROUP)}
            if entry not in known:
                hint = did_you_mean(entry, known, ": none is installed under that name")
                raise ConfigError(f"{name} names {entry!r}, which is not an entry point of {GROUP}{hint}")
            found = known[entry].load()
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{name} names {entry!r}, which cannot be loaded: {error}") from error
    if not callable(found):
        raise ConfigError(f"{name} names {entry!r}, which cannot be called with a topic and an argument")
    make: Callable[[str, str], DeletePolicy] = found
    return make
