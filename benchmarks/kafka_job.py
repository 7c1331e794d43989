"""What the benchmark `kafka` asks a client for, and what the client answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Job:
    """What one process does. `messages` of about `size` bytes over `partitions` partitions of `topic`."""

    client: str
    does: str
    bootstrap: str
    topic: str
    partitions: int
    messages: int
    size: int
    codec: str = "none"
    acks: int = -1
    batch_bytes: int = 64 << 10
    linger: float = 0.005


@dataclass(frozen=True, slots=True)
class Result:
    """Messages that were timed, seconds and processor seconds that they took; bytes of all values."""

    messages: int
    wall: float
    cpu: float
    bytes: int
