"""What other clients write, as their public sources have it, and what JVM members and consumerd write."""

from __future__ import annotations

import pytest

from consumerd.wire.registry.other_clients import claimant, other_client

UUID = "0b7e1f6c-3a52-4d7b-9c1e-5f0a2b3c4d5e"
KAZOO = f"host-1:{UUID}"
KAZOO_NODE = '{"pattern":"static","subscription":{"t":1},"timestamp":"1448000000","version":1}'
NODE = f"g_{UUID}"
NODE_NODE = '{"version":1,"subscription":{"t": 1, "u": 1},"pattern":"white_list","timestamp":"1448000000000"}'
POSEIDON = "g-host-1-4711-1448000000-3"
JVM = '{"version":1,"subscription":{"t":1},"pattern":"white_list","timestamp":"1"}'


@pytest.mark.parametrize(
    ("consumer_id", "text", "client"),
    [
        (KAZOO, KAZOO_NODE, "kazoo-go"),
        (f"host-1@10.0.0.1:{UUID}", KAZOO_NODE, "kazoo-go"),
        (KAZOO, "t", "pykafka"),
        (NODE, NODE_NODE, "kafka-node"),
        (POSEIDON, "{}", "poseidon_cluster"),
    ],
)
def test_recognises_clients_by_their_id_nodes(consumer_id: str, text: str, client: str) -> None:
    assert other_client("g", consumer_id, text) == client


@pytest.mark.parametrize(
    ("consumer_id", "text"),
    [
        ("g_host-1-1353495600000-00c0ffee", JVM),
        (NODE, JVM),  # a JVM member whose consumer.id is a UUID
        (NODE, '{ "t": 1 }'),
        ("g_a", "rubbish"),
        ("g-host-1-4711-1448000000-3", JVM),
        ("other-host-1-4711-1448000000-3", "{}"),
    ],
)
def test_takes_no_member_of_a_jvm_for_another_client(consumer_id: str, text: str) -> None:
    assert other_client("g", consumer_id, text) is None


@pytest.mark.parametrize("name", [KAZOO, NODE, POSEIDON, "any id"])
def test_finds_the_live_member_whose_bare_id_is_the_owner(name: str) -> None:
    sessions = {name: 5, "g_a": 6}
    assert claimant(name.encode(), 5, sessions) == name
    assert claimant(name.encode(), 7, sessions) == name  # its id node may be of a session of its own
    assert claimant(f"{name}/0".encode(), 5, sessions) == name
    assert claimant(f"{name}/0".encode(), 7, sessions) is None
    assert claimant(name.encode(), 0, sessions) is None  # a persistent node has no live owner


def test_leaves_owners_with_a_stream_to_the_rule_of_their_dialect() -> None:
    sessions = {"g_a": 5, "g_a-0": 6}
    assert claimant(b"g_a-0", 5, sessions) is None
    assert claimant(b"g_a-0", 6, sessions) == "g_a-0"
    assert claimant(b"g_a-1", 9, sessions) is None
    assert claimant(b"g_gone-0", 5, sessions) is None
    assert claimant(b"rubbish", 5, sessions) is None
    assert claimant(b"\xff", 5, sessions) is None
    assert claimant(None, 5, sessions) is None
