"""Custom delete policies, by name (`log.delete.policies`); age and size have properties of 0.7.

Strategy: a policy is made once per log by a factory `(topic, argument) -> DeletePolicy`, which is an entry point of the
group `consumerd.delete_policies`, or `module:attribute`. Names are resolved when the configuration is read, so that a
wrong one is an error at the start; an error of a factory for one topic affects that topic alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from consumerd.base.errors import ConfigError, reason_of
from consumerd.base.plugins import PluginKind, find
from consumerd.storage import DeletePolicy, StorageError

POLICY: Final = PluginKind("delete policy", "consumerd.delete_policies", ConfigError)


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
        found = find(POLICY, entry)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    if not callable(found):
        raise ConfigError(f"{name} names {entry!r}, which cannot be called with a topic and an argument")
    make: Callable[[str, str], DeletePolicy] = found
    return make
