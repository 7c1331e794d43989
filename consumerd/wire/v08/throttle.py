"""Obeying quotas: how long a broker wants us to be silent.

Strategy: an answer's throttle_time_ms counts only in the versions from which brokers answer at once and leave the
waiting to the client (since 2.0); before, the broker has waited itself, and waiting again would halve what is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from consumerd.wire.v08.apis import APIS
from consumerd.wire.v08.schema import Api

#: API key -> the first version whose throttle time is the client's to obey.
_SINCE: Final = {api.key: field.obeyed for api in APIS.values() for field in api.response if field.obeyed is not None}
#: Longest throttle time that is accepted from a broker.
LONGEST: Final = 60.0


def silence(api: Api[Any, Any], version: int, body: Mapping[str, Any]) -> float:
    """Seconds for which the next request has to wait after this answer."""
    since = _SINCE.get(api.key)
    if since is None or version < since:
        return 0.0
    milliseconds: int = body.get("throttle_time_ms", 0)
    return min(max(milliseconds, 0) / 1000, LONGEST)
