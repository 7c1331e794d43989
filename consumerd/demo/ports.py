"""Free loopback ports for servers that may be killed and come back on the same port.

Strategy: pick at random *below* the kernel's range for outgoing connections and try to bind. A port of that range would
be free now and taken by some client's outgoing connection while its server is down; worse, a client that reconnects
in a loop to a dead loopback port of that range sooner or later connects to itself.
"""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path
from typing import Final

from consumerd.demo.errors import ChildError

LOOPBACK: Final = "127.0.0.1"
_LOWEST: Final = 10_000
_TRIES: Final = 200


def _first_outgoing_port() -> int:
    """The low end of the range for outgoing connections; the IANA one (49152) where the kernel does not say."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 49_152
    return first if first > _LOWEST + 2 * _TRIES else 65_536


def free_ports(count: int) -> list[int]:
    """`count` different free TCP ports on loopback. Raises ChildError when none can be found.

    Another process may take one before its server binds it: start the server again then, with other ports.
    """
    below = _first_outgoing_port()
    rng = random.SystemRandom()
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for _ in range(_TRIES + count):
            if len(found) == count:
                break
            port = rng.randrange(_LOWEST, below)
            listener = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            listener.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # as the servers do: TIME_WAIT does not matter
            with contextlib.suppress(OSError):
                listener.bind((LOOPBACK, port))
                listener.listen(1)  # only listening keeps another SO_REUSEADDR socket from binding it too
                found.append(port)
    if len(found) < count:
        raise ChildError(f"no free TCP port was found on {LOOPBACK} between {_LOWEST} and {below}")
    return found


def free_port() -> int:
    """One free TCP port on loopback; see `free_ports`."""
    return free_ports(1)[0]
