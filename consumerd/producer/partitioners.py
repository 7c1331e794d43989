"""Partitioners: from a key to a partition of the topic (spec 003, 5.1: Partitioner)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, runtime_checkable

from consumerd.base.plugins import PluginKind, find
from consumerd.producer.errors import PartitionerError, PluginError
from consumerd.producer.v07.keys import key_index

PARTITIONER: Final = PluginKind("partitioner", "consumerd.partitioners", PluginError)


@runtime_checkable
class Partitioner(Protocol):
    """Chooses an index in the list of all (broker, partition) pairs of a topic, sorted."""

    def partition(self, key: Any, count: int, /) -> int:
        """A number from 0 up to, not including, `count` (at least 1). `key` is never None, and hashable."""
        ...


class HashPartitioner(Partitioner):
    """The hash of the key modulo `count`, as 0.7.2's DefaultPartitioner; see `consumerd.producer.v07.keys`."""

    def partition(self, key: Any, count: int, /) -> int:
        """Raises PartitionerError for keys that are neither text nor bytes."""
        if not isinstance(key, (str, bytes)):
            raise PartitionerError(
                f"a key must be text or bytes, not {type(key).__name__}: give the producer a partitioner for it."
            )
        return key_index(key, count)


class _CalledPartitioner(Partitioner):
    def __init__(self, function: Callable[[Any, int], int]) -> None:
        self._function = function

    def partition(self, key: Any, count: int, /) -> int:
        return self._function(key, count)


def checked_index(partitioner: Partitioner, key: Any, count: int) -> int:
    """The index for `key`. Raises PartitionerError for an invalid index, and what the partitioner raises."""
    index = partitioner.partition(key, count)
    if not isinstance(index, int) or not 0 <= index < count:
        raise PartitionerError(f"the partitioner must return a number from 0 to {count - 1}, not {index!r}.")
    return index


def load_partitioner(given: str | Partitioner | Callable[[Any, int], int] | None) -> Partitioner:
    """The partitioner that a user gives as an object, a function (key, count) -> index, or a name; None is the default.

    A name is an entry point of the group `consumerd.partitioners`, or module:attribute; it stands for a partitioner, a
    class of them, or a function. Raises PluginError.
    """
    if given is None:
        return HashPartitioner()
    found = find(PARTITIONER, given) if isinstance(given, str) else given
    if isinstance(found, type):
        found = found()
    if isinstance(found, Partitioner):
        return found
    if callable(found):
        return _CalledPartitioner(found)
    raise PluginError(f"the partitioner {given!r} must be callable or have a method `partition`.")
