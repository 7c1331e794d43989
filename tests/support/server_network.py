"""A network of servers, each in a namespace with an address of its own, whose links can be cut in each direction.

Strategy: a bridge in a namespace of its own joins the servers and one new interface of the tests' namespace, so that
processes started as usual reach all servers. A cut is a permanent entry in the sender's table of neighbours that names
a hardware address nobody has: frames are sent and vanish, as on a broken link, and no process notices. It needs neither
a firewall nor traffic control, which small kernels do not have. Nothing that existed before is changed.

Namespaces take root, and a machine that allows them: NoNetworkError otherwise.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

#: For tests of networks (RFC 2544): no real host has an address of it.
_RANGE: Final = ipaddress.IPv4Network("198.18.0.0/15")
_PREFIX: Final = 28
#: A locally administered hardware address, which no interface is given.
_NOBODY: Final = "02:00:00:00:00:01"
_COMMAND_SECONDS: Final = 20.0


class NoNetworkError(Exception):
    """Network namespaces cannot be made here; the text says why."""


class ServerNetwork:
    """`size` namespaces, numbered from 0, made and removed by `with`. All methods block for some milliseconds.

    `with` raises NoNetworkError where that is not possible.
    """

    def __init__(self, size: int) -> None:
        if not 1 <= size <= 2 ** (32 - _PREFIX) - 3:
            raise ValueError(f"a network has 1 to {2 ** (32 - _PREFIX) - 3} servers, not {size}")
        #: What the names of its namespaces and its interface begin with.
        self.name = f"cd{secrets.token_hex(4)}"
        self._switch = f"{self.name}-switch"
        start = int(_RANGE.network_address) + secrets.randbelow(2 ** (_PREFIX - _RANGE.prefixlen)) * 2 ** (32 - _PREFIX)
        #: The address of the tests' own namespace.
        self.client = str(ipaddress.IPv4Address(start + 1))
        #: The addresses of the servers.
        self.hosts = [str(ipaddress.IPv4Address(start + 2 + number)) for number in range(size)]
        #: What is cut now, by the server that it was cut for: sender and receiver of each direction.
        self._cuts: dict[int, set[tuple[int, str]]] = {}
        self._lock = threading.Lock()

    def _namespace(self, number: int) -> str:
        return f"{self.name}-{number}"

    # -- life

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise NoNetworkError("only root can make network namespaces")
        if shutil.which("ip") is None:
            raise NoNetworkError("network namespaces need the command `ip` of iproute2")
        try:
            self._make()
        except subprocess.CalledProcessError as error:
            self._remove()
            raise NoNetworkError(
                "this machine allows no network namespaces joined by a bridge: "
                f"{shlex.join(error.cmd)}: {error.stderr.strip()}"
            ) from error
        except BaseException:
            self._remove()
            raise
        return self

    def _make(self) -> None:
        _run(["netns", "add", self._switch])
        _run(["-n", self._switch, "-batch", "-"], ["link add bridge type bridge", "link set bridge up"])
        for number, host in enumerate(self.hosts):
            name = self._namespace(number)
            _run(["netns", "add", name])
            _run(["-n", self._switch, "link", "add", f"port{number}", "type", "veth", "peer", "eth0", "netns", name])
            _run(["-n", self._switch, "link", "set", f"port{number}", "master", "bridge", "up"])
            _run(
                ["-n", name, "-batch", "-"],
                ["link set lo up", f"address add {host}/{_PREFIX} dev eth0", "link set eth0 up"],
            )
        _run(
            ["-n", self._switch, "link", "add", "uplink", "type", "veth", "peer", self.name, "netns", str(os.getpid())]
        )
        _run(["-n", self._switch, "link", "set", "uplink", "master", "bridge", "up"])
        _run(["address", "add", f"{self.client}/{_PREFIX}", "dev", self.name])
        _run(["link", "set", self.name, "up"])

    def _remove(self) -> None:
        """Remove all that is there: the interfaces go with the namespaces that hold their other ends."""
        for name in (self._switch, *map(self._namespace, range(len(self.hosts)))):
            with contextlib.suppress(subprocess.CalledProcessError):  # it was not made
                _run(["netns", "delete", name])
        # The kernel ends a namespace later than the command does.
        with contextlib.suppress(subprocess.CalledProcessError):
            _run(["link", "delete", self.name])

    def __exit__(self, *_: object) -> None:
        self._remove()

    # -- for servers

    def wrapper(self, number: int, executable: Path | str, script: Path) -> Path:
        """Write `script`, which runs `executable` in the namespace of a server, with the same process id."""
        command = ["ip", "netns", "exec", self._namespace(number), str(executable)]
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        script.chmod(0o755)
        return script

    # -- faults

    def isolate(self, number: int) -> None:
        """Cut a server from the other servers, in both directions; clients reach it as before."""
        others = self._others(number)
        self._cut(
            number,
            [*((number, self.hosts[other]) for other in others), *((each, self.hosts[number]) for each in others)],
        )

    def mute(self, number: int) -> None:
        """Let nothing from a server arrive at the other servers; what they send arrives."""
        self._cut(number, [(number, self.hosts[other]) for other in self._others(number)])

    def mute_for_clients(self, number: int) -> None:
        """Let nothing from a server arrive at clients, so that none connects to it."""
        self._cut(number, [(number, self.client)])

    def heal(self, number: int | None = None) -> None:
        """End the cuts of a server, or all. What is also cut for another server stays so."""
        with self._lock:
            ended = [self._cuts.pop(each, set()) for each in ([*self._cuts] if number is None else [number])]
            for sender, receiver in sorted(set().union(*ended).difference(*self._cuts.values())):
                _run(["-n", self._namespace(sender), "neighbour", "delete", receiver, "dev", "eth0"])

    def _others(self, number: int) -> list[int]:
        return [other for other in range(len(self.hosts)) if other != number]

    def _cut(self, number: int, directions: Iterable[tuple[int, str]]) -> None:
        with self._lock:
            for sender, receiver in directions:
                entry = [receiver, "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent"]
                _run(["-n", self._namespace(sender), "neighbour", "replace", *entry])
                self._cuts.setdefault(number, set()).add((sender, receiver))


def _run(arguments: list[str], lines: Iterable[str] = ()) -> None:
    """Run `ip`. Raises CalledProcessError."""
    text = "".join(f"{line}\n" for line in lines)
    subprocess.run(["ip", *arguments], input=text, check=True, capture_output=True, text=True, timeout=_COMMAND_SECONDS)
