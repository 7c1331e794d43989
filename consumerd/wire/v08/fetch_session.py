"""The client's side of an incremental fetch session (KIP-227), without I/O.

Strategy: since 1.1 a broker remembers the partitions of a FETCH. The request that begins the session names all of them;
each later one names those that are new or ask for something else, and those to forget; and the broker answers with
those that have something new. `FetchSession` has the partitions that are asked for, and for those that changed since
the last request what the broker has of them, so that a request costs as much as has changed.

Requests of a session are numbered by its epoch. After any failure (a lost connection, a broker that no longer has the
session, a broker that has no room for one and answers with session id 0), the next request names all partitions again,
and asks for a new session. All partitions of a session are named by topic id, or all by topic name. Brokers without
sessions answer with session id 0, too, by the default of the field.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.schema import NO_UUID

#: A topic and the number of a partition.
Place = tuple[str, int]

#: The id of no session, the epoch of the request that begins one, and that of requests without one and of the last one.
NO_SESSION_ID: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_LAST_EPOCH: Final = (1 << 31) - 1
#: The value of an unknown offset or epoch.
_UNKNOWN: Final = -1
#: Errors of a whole response that mean only that a new session has to begin.
_OVER: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class PartitionFetch(NamedTuple):
    """One partition of a FETCH: about `max_bytes` from `offset` on.

    `leader_epoch`: the leader's, -1 for unknown. `topic_id`: NO_UUID for unknown. `last_epoch`: of the last message
    before `offset`, -1 for unknown; brokers since 2.7 compare it with their log.
    """

    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = _UNKNOWN
    topic_id: bytes = NO_UUID
    last_epoch: int = _UNKNOWN


class SessionRequest(NamedTuple):
    """A request in a session: the partitions that it names and those to forget. `topics`: names by id, of the session.

    `full`: it names all partitions, and the broker answers about each.
    """

    session_id: int
    epoch: int
    named: Sequence[PartitionFetch]
    forgotten: Sequence[PartitionFetch]
    topics: Mapping[bytes, str]

    @property
    def full(self) -> bool:
        """Whether it names all partitions, and the broker answers about each."""
        return self.epoch <= INITIAL_EPOCH


#: A request of its fields, without a call of Python code.
_session_request: Final = partial(tuple.__new__, SessionRequest)


#: A partition of its fields, without a call of Python code.
made_fetch: Final = partial(tuple.__new__, PartitionFetch)


def without_session(partitions: Collection[PartitionFetch]) -> SessionRequest:
    """Return a request for these partitions alone, which neither begins nor continues a session."""
    topics = {each.topic_id: each.topic for each in partitions}
    return SessionRequest(NO_SESSION_ID, FINAL_EPOCH, tuple(partitions), (), topics)


class FetchSession:
    """The partitions that are asked for, and what the broker knows of them. One request at a time."""

    __slots__ = ("_by_id", "_changed", "_epoch", "_id", "_numbers", "_topics", "_wanted")

    def __init__(self) -> None:
        self._id = NO_SESSION_ID
        #: That of the next request.
        self._epoch = INITIAL_EPOCH
        #: Whether the session names topics by their ids.
        self._by_id = False
        #: In the order in which they were asked for.
        self._wanted: dict[Place, PartitionFetch] = {}
        #: Those that changed since the last request, as the broker has them; None: it does not.
        self._changed: dict[Place, PartitionFetch | None] = {}
        #: Topic id -> name, and number of partitions, of those that are asked for.
        self._topics: dict[bytes, str] = {}
        self._numbers: dict[bytes, int] = {}

    def ask(self, entry: PartitionFetch) -> None:
        """Ask for a partition from the next request on, in place of what was asked of it before."""
        place = entry[:2]
        former = self._wanted.get(place)
        if former is not None and former.topic_id == entry.topic_id:  # nearly always
            self._changed.setdefault(place, former)
            del self._wanted[place]
        else:
            self.drop(place)
            self._topics[entry.topic_id] = entry.topic
            self._numbers[entry.topic_id] = self._numbers.get(entry.topic_id, 0) + 1
        self._wanted[place] = entry  # last in line: requests without a session are answered in their order

    def drop(self, place: Place) -> None:
        """Ask for a partition no more."""
        entry = self._wanted.pop(place, None)
        self._changed.setdefault(place, entry)
        if entry is not None:
            self._numbers[entry.topic_id] -= 1
            if not self._numbers[entry.topic_id]:
                del self._numbers[entry.topic_id], self._topics[entry.topic_id]

    def request(self) -> SessionRequest:
        """Return the next request. `answered` or `lost` follows."""
        by_id = NO_UUID not in self._topics
        if self._epoch != INITIAL_EPOCH and by_id != self._by_id:
            self._epoch = INITIAL_EPOCH
        named: list[PartitionFetch] = []
        forgotten: list[PartitionFetch] = []
        if self._epoch == INITIAL_EPOCH:
            self._by_id = by_id
            named.extend(self._wanted.values())
        else:
            for place, former in self._changed.items():
                entry = self._wanted.get(place)
                if entry is not None and entry != former:
                    named.append(entry)
                if former is not None and (entry is None or (by_id and entry.topic_id != former.topic_id)):
                    forgotten.append(former)
        self._changed.clear()
        return _session_request((self._id, self._epoch, named, forgotten, self._topics))

    def last_request(self) -> SessionRequest | None:
        """Return the request that ends the session; None if the broker is not known to have it."""
        return None if self._epoch == INITIAL_EPOCH else SessionRequest(self._id, FINAL_EPOCH, (), (), {})

    def answered(self, error: int, session_id: int) -> bool:
        """Note the response to the last request. False: it says that the session is over, and nothing else."""
        full = self._epoch == INITIAL_EPOCH
        if error:
            self.lost()
            if error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._id = NO_SESSION_ID
            return full or error not in _OVER
        if session_id == NO_SESSION_ID or (not full and session_id != self._id):
            self._id, self._epoch = NO_SESSION_ID, INITIAL_EPOCH
        else:
            self._id, self._epoch = session_id, 1 if self._epoch == _LAST_EPOCH else self._epoch + 1
        return True

    def lost(self) -> None:
        """Note that there is no response: what the broker has is unknown. The next request ends the session there."""
        self._epoch = INITIAL_EPOCH
