"""The rooms whose tests must notice every mutant, and the fast tests of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Room:
    """A folder of modules, and folders, files and names of tests; all below the checkout."""

    folder: str
    tests: tuple[str, ...]

    def modules(self) -> list[str]:
        """Return the paths of the modules."""
        return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / self.folder).glob("*.py"))


def _properties(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/property/test_{name}.py" for name in names)


#: Whole forwarders and producers in memory, with faults at some of their requests.
_FORWARD = "tests/simulation/test_forward.py::test_target_has_each_message_in_order_when_requests_are_disturbed"
_PRODUCE = "tests/simulation/test_producer.py::test_keeps_acknowledged_messages_in_order_when_requests_are_disturbed"
_PRODUCE_V07 = "tests/simulation/test_v07_producer.py::test_logs_are_as_told_when_requests_are_disturbed"

_ZK_REPLIES = "tests/fuzz/test_fuzz_corpus.py::test_mangled_inputs_break_no_law[zk-replies-0.2]"

ROOMS: Final = {
    "client": Room("consumerd/net/client", ("tests/unit/net/client",)),
    "cluster": Room("consumerd/net/cluster", ("tests/unit/net/cluster",)),
    "fetch": Room("consumerd/member/fetch", ("tests/unit/member/fetch", *_properties("fetching"))),
    "fetch/v07": Room(
        "consumerd/member/fetch/v07",
        ("tests/unit/member/fetch/v07", "tests/unit/member/fetch/test_policies.py", *_properties("fetching")),
    ),
    "fetch/v08": Room("consumerd/member/fetch/v08", ("tests/unit/member/fetch/v08", "tests/simulation/test_polls.py")),
    "forward": Room("consumerd/handlers/forward", ("tests/unit/handlers/forward", _FORWARD)),
    "producer": Room(
        "consumerd/producer",
        (
            "tests/unit/producer",
            *_properties("producer_keys", "producer_queue"),
            _PRODUCE,
            "tests/unit/test_library.py::test_deprecated_names_are_aliases_and_warn",
        ),
    ),
    "producer/v07": Room(
        "consumerd/producer/v07",
        ("tests/unit/producer/v07", *_properties("producer_keys", "producer_queue"), _PRODUCE_V07),
    ),
    "producer/v08": Room(
        "consumerd/producer/v08", ("tests/unit/producer/v08", "tests/unit/producer/test_cluster.py", _PRODUCE)
    ),
    "group": Room(
        "consumerd/group", ("tests/unit/group", *_properties("assignment", "assignors", "membership_events"))
    ),
    "consumer": Room(
        "consumerd/member/consumer",
        (
            "tests/unit/member/consumer",
            *(f"tests/unit/testing/test_{name}.py" for name in ("group", "harness", "harness_sync", "revocation")),
            "tests/simulation/test_groups.py::test_delivers_every_message_once_while_a_member_joins_and_leaves",
            "tests/simulation/test_kafka_handover.py::test_fixed_partitions_resume_from_their_commits_after_a_restart",
            "tests/simulation/test_kafka_handover.py::test_second_member_joins_and_leaves[latest-3.0]",
        ),
    ),
    "offsets": Room("consumerd/member/offsets", ("tests/unit/member/offsets", *_properties("handled_prefix"))),
    "zk": Room(
        "consumerd/net/zk",
        ("tests/unit/net/zk", "tests/simulation/test_zookeeper.py", *_properties("zk_requests"), _ZK_REPLIES),
    ),
    "storage": Room("consumerd/storage/log", ("tests/unit/storage/log", *_properties("log_crashes"))),
    "wire/v08": Room("consumerd/wire/v08", ("tests/unit/wire/v08", "tests/simulation/test_polls.py")),
    "wire/v07": Room(
        "consumerd/wire/v07",
        ("tests/unit/wire/v07", *_properties("wire_compression", "wire_frames", "wire_messages")),
    ),
}


def room_of(module: str) -> Room:
    """Return the room of a module. Raises KeyError with a sentence for a path outside of them."""
    for room in ROOMS.values():
        if str(Path(module).parent) == room.folder and (ROOT / module).is_file():
            return room
    raise KeyError(f"{module} is not a module of {', '.join(ROOMS)}")
