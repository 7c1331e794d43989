"""Free loopback ports for servers that may be killed and come back on the same port.

Strategy: pick *below* the kernel's range for outgoing connections and try to bind. A port of that range would be free
now and taken by some client's outgoing connection while its server is down; worse, a client that reconnects in a loop
to a dead loopback port of that range sooner or later connects to itself.

Ports are picked in turn, from a random one on, so none is picked twice before all others were: that of a server that is
down stays free for it. Processes that pick ports at the same time have ranges of their own for that (`keep_to`, or the
variable `LOOPBACK_PORTS` of their environment).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
from pathlib import Path
from typing import Final

from consumerd.demo.errors import ChildError

LOOPBACK: Final = "127.0.0.1"
#: The environment variable with the first and the last port that a process may pick, such as `10000-12999`.
RANGE_VARIABLE: Final = "LOOPBACK_PORTS"
_LOWEST: Final = 10_000
_FEWEST: Final = 400


class PortSequence:
    """The ports of a range in turn, again and again, from a random one on."""

    def __init__(self, ports: range) -> None:
        self.ports = ports
        self._turns = itertools.count(random.SystemRandom().randrange(len(ports)))

    def next(self) -> int:
        """The next port. Threads may call it at the same time."""
        return self.ports[next(self._turns) % len(self.ports)]


#: What this process picks from: made at the first use.
_sequences: Final[list[PortSequence]] = []


def keep_to(ports: range) -> None:
    """From now on this process picks these ports alone. Its children follow `LOOPBACK_PORTS`."""
    _sequences[:] = [PortSequence(ports)]


def usable_ports() -> range:
    """The ports that `LOOPBACK_PORTS` names, else all below those for outgoing connections. Raises ChildError."""
    named = os.environ.get(RANGE_VARIABLE)
    if named is None:
        return range(_LOWEST, _first_outgoing_port())
    first, _, last = named.partition("-")
    with contextlib.suppress(ValueError):
        if 0 < int(first) <= int(last) < 1 << 16:
            return range(int(first), int(last) + 1)
    raise ChildError(f"{RANGE_VARIABLE} is {named!r}: set it to the first and the last port, such as 10000-12999")


def _first_outgoing_port() -> int:
    """The low end of the range for outgoing connections; the IANA one (49152) where the kernel does not say."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 49_152
    return first if first > _LOWEST + _FEWEST else 65_536


def free_ports(count: int) -> list[int]:
    """`count` different free TCP ports on loopback. Raises ChildError when none can be found.

    A process that picks from the same range may take one before its server binds it: start the server again then, with
    other ports.
    """
    if not _sequences:
        keep_to(usable_ports())
    (sequence,) = _sequences
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for _ in sequence.ports:
            if len(found) == count:
                break
            port = sequence.next()
            listener = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            listener.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # as the servers do: TIME_WAIT does not matter
            with contextlib.suppress(OSError):
                listener.bind((LOOPBACK, port))
                listener.listen(1)  # only listening keeps another SO_REUSEADDR socket from binding it too
                found.append(port)
    if len(found) < count:
        raise ChildError(
            f"no free TCP port was found on {LOOPBACK} between {sequence.ports[0]} and {sequence.ports[-1]}"
        )
    return found


def free_port() -> int:
    """One free TCP port on loopback; see `free_ports`."""
    return free_ports(1)[0]
