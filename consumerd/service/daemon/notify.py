"""Service notification to systemd: one datagram to the socket named by NOTIFY_SOCKET; nothing without that variable.

The protocol is sd_notify(3): newline-separated assignments. A name that starts with `@` is an abstract socket.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

import structlog

from consumerd.base.errors import reason_of

log = structlog.get_logger(__name__)

READY = "READY=1"
RELOADING = "RELOADING=1"
STOPPING = "STOPPING=1"


def notify(*assignments: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Send `assignments` to the service manager; whether they were sent. A manager that is gone is only logged."""
    name = environment.get("NOTIFY_SOCKET", "")
    if not name:
        return False
    address = "\0" + name[1:] if name.startswith("@") else name
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.setblocking(False)
            channel.sendto("\n".join(assignments).encode(), address)
    except OSError as error:
        log.warning("service_manager_not_notified", socket=name, reason=reason_of(error))
        return False
    return True


def reloading_since() -> str:
    """The assignment that goes with RELOADING: when the reload began, which tells it from earlier ones."""
    return f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"


def status(text: str) -> str:
    """The assignment that shows `text` in `systemctl status`."""
    return "STATUS=" + text.replace("\n", " ")
