"""The choice of the codec: the native one (distribution `consumerd-native`) where it is installed, else the pure one.

Strategy: the pure code is complete, and runs alone where the native codec is missing, was built for another version of
consumerd, or is turned off by `CONSUMERD_PURE=1`. Code that can use the native codec calls `codec()` each time, so that
one process can run both, as tests and benchmarks do.
"""

from __future__ import annotations

import importlib
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, cast, overload

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The environment variable that chooses the pure codec, with any value but these.
PURE = "CONSUMERD_PURE"
_OFF = {"", "0", "false", "no"}
#: What the native codec must say of itself: raised with every change of what it offers.
INTERFACE = 4


class NativeLimits(Protocol):
    """`consumerd.wire.v07.Limits`, as the native codec reads them."""


class NativePayloads(Protocol):
    """Payloads as a buffer and an index, which grows while messages are read; objects are made for each asking."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of all payloads."""
        ...

    @property
    def held_bytes(self) -> int:
        """Bytes that are held for them."""
        ...

    @property
    def runs(self) -> list[tuple[int, int, int]]:
        """Of each run: the number of its first payload, its position in the data, bytes beside each payload."""
        ...

    def read(self, position: int, limits: NativeLimits, /) -> tuple[int, bool]:
        """Take whole and intact messages from `position` on.

        Returns where the next thing stands, and whether it is only left for another step.
        """
        ...

    def is_full(self, limits: NativeLimits, /) -> bool:
        """Whether no further wrapper is taken."""
        ...

    def append(self, position: int, payload: bytes, overhead: int, /) -> None:
        """Add the plain message at `position`."""
        ...

    def extend(self, position: int, payloads: list[bytes], expanded: int, /) -> None:
        """Add the leaves of the wrapper at `position`, whose sets have `expanded` bytes."""
        ...

    def settle(self) -> None:
        """Nothing more is added: hold no more than the payloads would take as objects."""
        ...

    def size_between(self, first: int, stop: int, /) -> int:
        """Bytes of the payloads from number `first` to `stop`."""
        ...

    def json_lines(self, head: bytes, offset: int, first: int, lines: int, size: int, /) -> tuple[bytes, int]:
        """Messages from number `first` on as NDJSON, and the number of the next one.

        `head` begins each line, `offset` is that of the data; at most `lines`, and `size` bytes unless it is one line.
        """
        ...

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[bytes]: ...
    @overload
    def __getitem__(self, position: int, /) -> bytes: ...
    @overload
    def __getitem__(self, position: slice, /) -> list[bytes]: ...


class Codec(Protocol):
    """The module `consumerd_native`."""

    INTERFACE: int
    __version__: str

    def __hash__(self) -> int: ...

    def Limits(  # noqa: N802 - a class there
        self,
        *,
        max_message_bytes: int,
        max_wrapper_bytes: int,
        max_decompressed_bytes: int,
        max_batch_bytes: int,
        max_depth: int,
        max_pieces: int,
    ) -> NativeLimits:
        """Limits of a decoder."""
        ...

    def verify(self, data: bytes, position: int, longest: int, magic: int, /) -> tuple[int, int]:
        """As `consumerd.wire.v07.walk.verify`, of the messages of one magic."""
        ...

    def Payloads(self, data: bytes | memoryview, /) -> NativePayloads:  # noqa: N802
        """No payloads as yet of the message set `data`; a memoryview must be one of bytes."""
        ...


def _load() -> tuple[Codec | None, str]:
    """The native codec, if it is to be used, and which codec runs, in words."""
    if os.environ.get(PURE, "").lower() not in _OFF:
        return None, f"pure codec, because {PURE} is set"
    try:
        module = importlib.import_module("consumerd_native")
    except ModuleNotFoundError:
        return None, "pure codec"
    except ImportError as error:
        return None, f"pure codec, because consumerd-native cannot be loaded: {error}"
    codec = cast("Codec", module)
    if getattr(codec, "INTERFACE", None) != INTERFACE:
        version = getattr(codec, "__version__", "of unknown version")
        return None, f"pure codec, because consumerd-native {version} is for another version of consumerd"
    return codec, f"native codec {codec.__version__}"


_codec, _description = _load()


def describe() -> str:
    """Which codec runs and, where that is not plain, why."""
    return _description


def codec() -> Codec | None:
    """The native codec; None where the pure one runs."""
    return _codec


@contextmanager
def using(chosen: Codec | None) -> Iterator[None]:
    """Run with another codec for a while: for tests and benchmarks that compare both."""
    global _codec  # noqa: PLW0603 - the one place that changes it
    before, _codec = _codec, chosen
    try:
        yield
    finally:
        _codec = before
