"""Members of other clients in groups that ZooKeeper coordinates, which register like JVM members and assign otherwise.

Ring 0. Read from the clients' public sources. All write their bare consumer id into owner nodes, without a stream:

| client | consumer id | id node | owner node |
|---|---|---|---|
| kazoo-go, wvanbergen/kafka (Go) | `host:uuid`, `host@address:uuid` | the JSON of 0.8 | `owners/topic/partition` |
| pykafka, BalancedConsumer | `host:uuid` | the name of its topic, not JSON | `owners/topic/leader-partition` |
| kafka-node, HighLevelConsumer | `group_uuid`, or a configured one | JSON with blanks | as kazoo-go |
| poseidon_cluster (Ruby) | `group-host-pid-seconds-number` | `{}` | as kazoo-go |

An owner is recognised by its value, a client by the form of its id, so that a member is known before it owns anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from consumerd.wire.registry.errors import RegistryError
from consumerd.wire.registry.text import text_of
from consumerd.wire.registry.values import parse_owner

_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_HOST_UUID: Final = re.compile(rf"[^:]+:{_UUID}")
_ONLY_UUID: Final = re.compile(_UUID)
_POSEIDON: Final = re.compile(r".+-[0-9]+-[0-9]{9,11}-[0-9]+")
#: kafka-node puts blanks into its JSON where JVM members put none.
_KAFKA_NODE: Final = re.compile(r'"subscription":\{"[^"]*": [0-9]')


class OwnerClaim(NamedTuple):
    """An owner node that names a live member of another client: the member, the node's value, and its path."""

    consumer_id: str
    text: str
    path: str


def other_client(group: str, consumer_id: str, text: str) -> str | None:
    """Return the client with another assignment rule that registers like this; None for JVM members and unknown ones.

    `text`: the member's node.
    """
    if _HOST_UUID.fullmatch(consumer_id):
        return "kazoo-go" if text.lstrip().startswith("{") else "pykafka"
    if text == "{}" and consumer_id.startswith(f"{group}-") and _POSEIDON.fullmatch(consumer_id[len(group) :]):
        return "poseidon_cluster"
    if _ONLY_UUID.fullmatch(consumer_id.removeprefix(f"{group}_")) and _KAFKA_NODE.search(text):
        return "kafka-node"
    return None


def claimant(value: bytes | str | None, session: int, sessions: Mapping[str, int]) -> str | None:
    """Return the live member that an owner node's value names by its bare id; None for `consumerid-stream`.

    `session`: that of the owner node, 0 for a persistent one, which no live member holds; `sessions`: those of the id
    nodes. The value may have an addition to the id, if the id node is on the same session.
    """
    if not session:
        return None
    try:
        text = text_of(value, "the owner of a partition")
    except RegistryError:
        return None
    try:
        named = parse_owner(text)[0]
    except RegistryError:
        named = ""
    if sessions.get(named) == session:
        return None
    if text in sessions:
        return text
    if named in sessions:
        return None
    begun = [name for name, its in sessions.items() if its == session and text.startswith(name)]
    return max(begun, key=len, default=None)
