"""Where partitions of 0.8 and later begin and end, and what is in them: OFFSETS and FETCH, for tasks and planners.

Strategy: each question goes to the leader of its partition, and is repeated as `consumerd.spark.source.logical_cluster`
says. One request at a time; a broker may wait half a second for something to come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from consumerd.spark.source.errors import OffsetGoneError
from consumerd.spark.source.logical_cluster import Cluster
from consumerd.wire.v08.apis import FETCH, OFFSETS
from consumerd.wire.v08.error_codes import ErrorCode
from consumerd.wire.v08.throttle import silence

if TYPE_CHECKING:
    from collections.abc import Collection

    from consumerd.spark.source.logical_cluster import Place
    from consumerd.spark.source.logical_connection import Address

#: The last version of FETCH that names topics and not their ids.
_LAST_FETCH: Final = 12
#: The first versions that know of transactions.
_ISOLATION_SINCE: Final = {FETCH.key: 4, OFFSETS.key: 2}
#: Milliseconds for which a broker may wait for the first byte.
_WAIT: Final = 500
#: What a FETCH's answer may have beside messages: aborted transactions.
_ROOM: Final = 32 << 20
_NOBODY: Final = -1


class Fetched(NamedTuple):
    """What a broker answered. `reach`: where what can be read ends now; `aborted`: as `decode_records` wants it.

    `throttled`: it may have kept back what there is, because of a quota.
    """

    data: bytes | memoryview
    reach: int
    aborted: tuple[tuple[int, int], ...]
    throttled: bool


class LogicalClient(Cluster):
    """A client of one cluster. Methods raise as `Cluster.retried` does."""

    def offsets(self, wanted: Collection[Place], when: int) -> dict[Place, int | None]:
        """Of each partition the first offset at `when` (ms since 1970, EARLIEST, LATEST) or later; None: there is none.

        Brokers before 0.10.1 name the start of a segment, before which there may be nothing of that time either. LATEST
        is where readers of the place's isolation come to.
        """
        found: dict[Place, int | None] = {}

        def ask() -> dict[Place, int | None]:
            by_leader: dict[Address, list[Place]] = {}
            for each in wanted:
                if each not in found:
                    by_leader.setdefault(self.leader(each), []).append(each)
            for leader, places in by_leader.items():
                self._ask_offsets(leader, places, when, found)
            return found

        return self.retried(ask)

    def first_at(self, place: Place, when: int, start: int, end: int) -> int:
        """Where to start, from `start` to `end`, so as to see all that is of `when` (ms since 1970) or later."""
        found = self.offsets([place], when)[place]
        if found is None:  # before 0.10.1: everything may be of that time; since: nothing is
            version = self.retried(lambda: self.connection(self.leader(place)).version(OFFSETS))
            return end if version else start
        return min(max(found, start), end)

    def fetch(self, place: Place, offset: int, size: int, most: int) -> Fetched:
        """Messages from `offset` on: about `size` bytes, at least one message or batch since 0.10.1, or nothing.

        `most`: no message or batch is larger. Raises OffsetGoneError.
        """
        return self.retried(lambda: self._fetch(place, offset, size, most))

    def _ask_offsets(self, leader: Address, places: list[Place], when: int, found: dict[Place, int | None]) -> None:
        connection = self.connection(leader)
        version = connection.version(OFFSETS)
        by_topic: dict[str, list[dict[str, int]]] = {}
        for topic, partition in places:
            asked = {"partition": partition, "timestamp": when}
            by_topic.setdefault(topic, []).append(asked | ({} if version else {"max_num_offsets": 1}))
        body: dict[str, Any] = {
            "topics": [{"topic": topic, "partitions": parts} for topic, parts in by_topic.items()],
            **self._isolation(OFFSETS.key, version),
        }
        answer = self.call(connection, OFFSETS, body, "offsets", version)
        wanted = set(places)
        for topic in answer["responses"]:
            for part in topic["partition_responses"]:
                each = topic["topic"], part["partition"]
                if each not in wanted:
                    continue
                if code := part["error_code"]:
                    what = f"broker {connection.name} names no offset of {each[0]}/{each[1]}"
                    raise self.refused(code, what, each)
                offset = part["offset"] if version else next(iter(part["offsets"]), _NOBODY)
                found[each] = offset if offset >= 0 else None
        if left := [each for each in places if each not in found]:
            raise self.invalid(connection, f"leaves {left[0][0]}/{left[0][1]} out of its answer about offsets")

    def _fetch(self, place: Place, offset: int, size: int, most: int) -> Fetched:
        connection = self.connection(self.leader(place))
        version = connection.version(FETCH, _LAST_FETCH)
        topic, partition = place
        where = f"{topic}/{partition} from {offset}"
        wanted = {"partition": partition, "fetch_offset": offset, "max_bytes": size}
        body: dict[str, Any] = {
            "replica_id": _NOBODY,
            "max_wait_time": _WAIT,
            "min_bytes": 1,
            "max_bytes": size,
            "topics": [{"topic": topic, "partitions": [wanted]}],
            **self._isolation(FETCH.key, version),
        }
        answer = self.call(connection, FETCH, body, where, version, max(size, most) + _ROOM)
        parts = [
            part
            for each in answer["responses"]
            if each["topic"] == topic
            for part in each["partition_responses"]
            if part["partition"] == partition
        ]
        code = answer.get("error_code", 0) or next((part["error_code"] for part in parts), 0)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise OffsetGoneError(f"broker {connection.name} has nothing of {where}: OFFSET_OUT_OF_RANGE")
        if code:
            raise self.refused(code, f"broker {connection.name} refuses a fetch of {where}", place)
        if len(parts) != 1:
            raise self.invalid(connection, f"has {len(parts)} partitions in its answer to a fetch of {where}")
        (part,) = parts
        data, throttled = part["record_set"] or b"", silence(FETCH, version, answer) > 0
        if not self.place.read_committed or part.get("last_stable_offset", -1) < 0:
            return Fetched(data, part["high_watermark"], (), throttled)
        aborted = tuple((each["producer_id"], each["first_offset"]) for each in part.get("aborted_transactions") or ())
        return Fetched(data, part["last_stable_offset"], aborted, throttled)

    def _isolation(self, key: int, version: int) -> dict[str, int]:
        if version < _ISOLATION_SINCE[key]:  # nobody writes transactions to such a broker
            return {}
        return {"isolation_level": int(self.place.read_committed)}
