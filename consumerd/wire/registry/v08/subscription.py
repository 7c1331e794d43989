"""The subscription of a member of a ZooKeeper-coordinated group of Kafka 0.8 to 1.1: its node under `/consumers/G/ids`.

Ring 0. `{"version":1,"subscription":{"t":2},"pattern":"static","timestamp":"..."}`: topics with numbers of streams, or
one filter as the only key and "white_list" or "black_list" as the pattern (golden recordings of 0.8.2.2 to 1.1.1). It
is read as the JVM's members do, since all must compute the same topics: any other pattern, and an empty subscription,
is static. Consumers of 1.0 and 1.1 escape a filter's backslashes twice; all peers read that literally, and so do we.
"""

from __future__ import annotations

from consumerd.wire.registry.dialect import Dialect, subscription_dialect
from consumerd.wire.registry.errors import DialectError, RegistryError, shown
from consumerd.wire.registry.subscription import (
    FilterSubscription,
    StaticSubscription,
    Subscription,
    parse_subscription,
)
from consumerd.wire.registry.text import text_of
from consumerd.wire.registry.topic_filter import FilterKind, TopicFilter
from consumerd.wire.registry.v08.json import member_of, object_of, quoted

_WHITELIST, _BLACKLIST, _STATIC = "white_list", "black_list", "static"
_KINDS = {_WHITELIST: FilterKind.WHITELIST, _BLACKLIST: FilterKind.BLACKLIST}
_PATTERNS = {kind: pattern for pattern, kind in _KINDS.items()}


def parse_subscription_v08(data: bytes | str | None) -> Subscription:
    """Read the node of a member. Raises DialectError for a member of Kafka 0.7, else RegistryError."""
    what = "the subscription of a member"
    text = text_of(data, what)
    if subscription_dialect(text) is Dialect.V07 and _is_v07(text):
        raise DialectError(
            f"a member of this group speaks the dialect of Kafka 0.7 ({shown(text)}); "
            "0.8 and later cannot share a group with it"
        )
    found = object_of(text, what)
    pattern = found.get("pattern")
    if not isinstance(pattern, str):
        raise RegistryError(f"{what} has no pattern: {shown(text)}")
    wanted = member_of(found, "subscription", what)
    if pattern not in _KINDS or not wanted:
        return StaticSubscription(wanted)
    if len(wanted) > 1:
        raise RegistryError(f"{what} has {len(wanted)} filters: {shown(text)}; expected one")
    ((regex, streams),) = wanted.items()
    return FilterSubscription(TopicFilter(_KINDS[pattern], regex), streams)


def _is_v07(text: str) -> bool:
    """Whether it is a subscription in the dialect of 0.7. `{ }` does not count: it is empty in either dialect."""
    try:
        found = parse_subscription(text)
    except RegistryError:
        return False
    return isinstance(found, FilterSubscription) or bool(found.streams)


def format_subscription_v08(subscription: Subscription, wall_ms: int) -> str:
    """Return the text of 0.8.2.2, to be stored as UTF-8. `wall_ms`: start of the member, in milliseconds since 1970."""
    if isinstance(subscription, FilterSubscription):
        pattern = _PATTERNS[subscription.filter.kind]
        wanted = {subscription.filter.text: subscription.streams}
    else:
        pattern, wanted = _STATIC, dict(subscription.streams)
    entries = ",".join(f"{quoted(key)}:{streams}" for key, streams in wanted.items())
    return f'{{"version":1,"subscription":{{{entries}}},"pattern":"{pattern}","timestamp":"{wall_ms:d}"}}'
