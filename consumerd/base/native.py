"""The choice of the codec: the native one (distribution `consumerd-native`) where it is installed, else the pure one.

Strategy: the pure code is complete, and runs alone where the native codec is missing, was built for another version of
consumerd, or is turned off by `CONSUMERD_PURE=1`. Code that can use the native codec calls `codec()` each time, so that
one process can run both, as tests and benchmarks do.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, cast, overload

#: The environment variable that chooses the pure codec, with any value but these.
PURE = "CONSUMERD_PURE"
_OFF = {"", "0", "false", "no"}
#: The interface version that the native codec must have: raised with every change of its interface.
INTERFACE = 15


class NativeLimits(Protocol):
    """`consumerd.wire.v07.Limits`, as the native codec reads them."""


#: Buffers of a binary column of Arrow: validity (empty if nothing is null), offsets, data.
NativeBinary: TypeAlias = tuple[bytes, bytes, bytes]


class NativeKind(Protocol):
    """The class of named tuples that messages stand for, and their partition."""


class NativePayloads(Protocol):
    """Payloads as a buffer and an index, which grows while messages are read; objects are made at each access."""

    @property
    def payload_bytes(self) -> int:
        """The bytes of all payloads."""
        ...

    @property
    def held_bytes(self) -> int:
        """The bytes of memory held for them."""
        ...

    @property
    def expanded_bytes(self) -> int:
        """The bytes that came out of wrappers, nested ones among them."""
        ...

    @property
    def runs(self) -> list[tuple[int, int, int]]:
        """Of each run: the number of its first payload, its position in the data, bytes beside each payload."""
        ...

    def read(self, position: int, limits: NativeLimits, /) -> tuple[int, bool]:
        """Take whole and intact messages from `position` on.

        Returns the position after them, and whether reading only stopped for another step.
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
        """Shrink to at most the memory of the payloads as objects, as nothing more is added."""
        ...

    def size_between(self, first: int, stop: int, /) -> int:
        """Return the bytes of the payloads from number `first` to `stop`."""
        ...

    def fitting(self, first: int, stop: int, size: int, /) -> tuple[int, int]:
        """Return the number behind the payloads from `first` to `stop` of at most `size` bytes, and their bytes."""
        ...

    def messages(
        self, kind: NativeKind, first: int, stop: int, offset: int, next_offset: int, most: int, /
    ) -> Iterator[list[Any]]:
        """Return the messages `first` to `stop` in lists of at most `most`, made as they are consumed.

        `offset` is that of the data, `next_offset` follows the last message. Raises IndexError.
        """
        ...

    def arrow(
        self, first: int, stop: int, offset: int, next_offset: int, most: int, wide: bool, /
    ) -> tuple[NativeBinary, bytes, bytes, bytes]:
        """Return payloads, offsets, indexes (32 bits) and next offsets of messages `first` to `stop` as Arrow buffers.

        `offset` is that of the data, `next_offset` follows the last message. Payloads have at most `most` bytes, and
        64-bit offsets if `wide`. Raises IndexError, and OverflowError where they have more bytes.
        """
        ...

    def json_lines(self, head: bytes, offset: int, first: int, lines: int, size: int, /) -> tuple[bytes, int]:
        """Return messages from number `first` on as NDJSON, and the number of the next one.

        `head` begins each line, `offset` is that of the data; at most `lines`, and `size` bytes unless it is one line.
        """
        ...

    def json_rows(
        self,
        first: int,
        stop: int,
        offset: int,
        next_offset: int,
        head: bytes,
        kind: bytes,
        tail: bytes,
        base64: bool,
        /,
    ) -> bytes:
        """Return the messages `first` to `stop`, which are of one run, as `consumerd.storage.archives.ndjson` writes
        them.

        `offset` is that of the data, `next_offset` follows the last message; `head` stands before the offset, `kind`
        after the next offset, `tail` after the payload. Raises IndexError.
        """
        ...

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[bytes]: ...
    @overload
    def __getitem__(self, position: int, /) -> bytes: ...
    @overload
    def __getitem__(self, position: slice, /) -> list[bytes]: ...


#: The state of decoding a fetch: position, least offset that may follow, next offset, decompressed bytes.
Place: TypeAlias = tuple[int, int, int, int]


#: Of a FETCH response: throttle time (milliseconds), error, session, and of each partition the id of its topic (before
#: version 13 the name), its number, its error, the end of the readable messages, a replica to read from, and records.
FetchParts: TypeAlias = tuple[int, int, int, Sequence[tuple[bytes | str, int, int, int, int, bytes | memoryview]]]


class NativeRecords(Protocol):
    """Values, keys and headers of records as buffers and an index, which grows while they are read."""

    @property
    def record_bytes(self) -> int:
        """The memory of the records in bytes, without the objects of their values."""
        ...

    @property
    def held_bytes(self) -> int:
        """The bytes of memory held for them."""
        ...

    def timestamp(self, number: int, /) -> int | None:
        """As `RecordSet.timestamp_at`. Raises IndexError."""
        ...

    #: The leader epoch of what was read, if that had one; `read` stops at another one.
    leader_epoch: int | None

    @property
    def any_aborted(self) -> bool:
        """Whether there are transactions that are or will be aborted."""
        ...

    @property
    def headers(self) -> list[tuple[int, tuple[tuple[str, bytes | None], ...]]]:
        """Of the records that have headers: number and headers."""
        ...

    @property
    def runs(self) -> list[tuple[int, int, int, bytes | None, int, int, bytes, int]]:
        """The fields of a run.

        The number of its first record, first offset and number of offsets, the offsets as 64-bit numbers where they
        have gaps, kind of times, base time, times as 64-bit numbers, codec.
        """
        ...

    def messages(
        self,
        kind: NativeKind,
        first: int,
        stop: int,
        next_offset: int,
        most: int,
        types: tuple[int, int, int],
        headers: dict[int, tuple[tuple[str, bytes | None], ...]],
        /,
    ) -> Iterator[list[Any]]:
        """Return the messages `first` to `stop` in lists of at most `most`, made as they are consumed.

        `next_offset` follows the last record of all; `types` are the kinds of times from -1 on; `headers` by number.
        Raises IndexError.
        """
        ...

    def read(self, place: Place, limits: NativeLimits, /) -> Place:
        """Take whole, intact messages and batches for which there is room; return the place after them."""
        ...

    def add(
        self,
        values: list[bytes | None],
        keys: list[bytes | None],
        offsets: Sequence[int],
        kind: int,
        base_time: int,
        times: Sequence[int],
        codec: int,
        record_bytes: int,
        /,
    ) -> None:
        """Add a run that was read elsewhere, and the memory of its records."""
        ...

    def is_aborted(self, producer: int, last: int, /) -> bool:
        """Whether a batch of a producer, with this last offset, is of an aborted transaction."""
        ...

    def end_aborted(self, producer: int, /) -> None:
        """End the aborted transaction of a producer, if there is one."""
        ...

    def settle(self) -> None:
        """Shrink to at most the memory of the records as objects, as nothing more is added."""
        ...

    def fitting(self, first: int, stop: int, size: int, /) -> tuple[int, int]:
        """Return the number behind the values from `first` to `stop` of at most `size` bytes, and their bytes."""
        ...

    def arrow(
        self, first: int, stop: int, next_offset: int, most: int, wide: bool, /
    ) -> tuple[
        NativeBinary,
        NativeBinary | None,
        tuple[bytes, NativeBinary, NativeBinary] | None,
        bytes,
        bytes,
        tuple[bytes, bytes],
    ]:
        """Return the records `first` to `stop` as Arrow buffers.

        Values; keys, if there are any; offsets of lists, names and values of headers, if there are any; offsets; next
        offsets; validity and times. `next_offset` follows the last record. Values have at most `most` bytes, and so
        have keys; both have 64-bit offsets if `wide`. Raises IndexError, and OverflowError where they have more bytes.
        """
        ...

    def keys(self, first: int, stop: int, /) -> list[bytes | None]:
        """Return the keys of the records from number `first` to `stop`."""
        ...

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[bytes | None]: ...
    @overload
    def __getitem__(self, position: int, /) -> bytes | None: ...
    @overload
    def __getitem__(self, position: slice, /) -> list[bytes | None]: ...


class NativeFilling(Protocol):
    """Adds messages to the lists of a batch as long as they have at most `room` bytes, with an overhead for each."""

    batch: Any
    room: int

    def add(self, value: bytes | None, timestamp: int | None, /) -> Any:
        """Add a message, of now if `timestamp` is None, and return its delivery; return None if there is no room.

        Returns None, too, for a value that is not bytes.
        """
        ...


class NativeCodec(Protocol):
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

    def verify(
        self, data: bytes | bytearray | memoryview, position: int, longest: int, magic: int, last: bool, /
    ) -> tuple[int, int]:
        """As `consumerd.wire.v07.walk.verify`, of the messages of one magic."""
        ...

    def check_batches(
        self, data: bytes, position: int, least: int, epoch: int, limits: NativeLimits, shallow: bool, /
    ) -> tuple[int, int, int, int, int, int, int, int]:
        """As `consumerd.storage.segments.checking.sound_batches`."""
        ...

    def same_kind(self, data: bytes, position: int, least: int, most: int, room: int, /) -> tuple[int, int, int]:
        """As `consumerd.storage.segments.kinds.same_kind`."""
        ...

    def encode_set(self, payloads: object, /) -> bytes | None:
        """Encode messages of 0.7 of magic 1; return None for an argument that is not a list of bytes, or too long."""
        ...

    def encode_produce(
        self, topic: bytes, partition: int, payloads: object, largest: int, most: int, /
    ) -> bytes | None:
        """Encode a whole PRODUCE request of 0.7 with messages of magic 1; return None as `encode_set`.

        Also for a payload of more than `largest` bytes, and a message set of more than `most`.
        """
        ...

    def copy_bytes(self, messages: object, /) -> list[bytes] | None:
        """Return a copy of `messages`; None if it is not a list of nothing but bytes."""
        ...

    def encode_messages(
        self, payloads: object, keys: object, times: object, magic: int, attributes: int, offset: int, /
    ) -> bytes | None:
        """Encode messages of 0.8 to 0.10; return None for arguments that are not lists of bytes and numbers or too big.

        `keys` may be None, `times` one number for all.
        """
        ...

    def encode_records(self, payloads: object, keys: object, times: object, /) -> tuple[bytes, int, int] | None:
        """Encode records without headers; return them, first and highest timestamp; None as with `encode_messages`."""
        ...

    def encode_batch(
        self,
        payloads: object,
        keys: object,
        times: object,
        numbers: tuple[int, int, int, int, int, int],
        around: tuple[bytes, bool, bytes] | None,
        /,
    ) -> bytes | None:
        """Encode a record batch without compression and headers; None as with `encode_messages`.

        `numbers`: attributes, base offset, leader epoch, producer id, producer epoch, base sequence. `around`: what
        stands before and behind the batch in a request, which is made as a whole, with the size before it; and whether
        the length of the batch is a compact one.
        """
        ...

    def fetch_parts(self, version: int, data: bytes, committed: bool, views: bool, /) -> FetchParts | None:
        """As `consumerd.wire.v08.fetch_frame.fetch_parts`."""
        ...

    def read_records(
        self, data: bytes | memoryview, offset: int, aborted: list[tuple[int, int]], limits: NativeLimits, /
    ) -> tuple[NativeRecords, tuple[int, int, int, int], int, int | None]:
        """Read records from the start of `data` on; see `NativeRecords.read`.

        Returns them, the place behind them, `record_bytes` and the leader epoch. They are settled if that is all.
        """
        ...

    def value_sizes(self, values: object, /) -> tuple[int, int] | None:
        """Return the bytes of all values and of the longest; None for what is not a list of bytes and nulls."""
        ...

    def fitting_values(self, values: list[bytes | None], first: int, size: int, beside: int, /) -> tuple[int, int]:
        """Return the number behind the values from `first` on that have at most `size` bytes, and their bytes.

        Each counts with `beside` bytes more. The list is one that `value_sizes` counted.
        """
        ...

    def row_hashes(
        self,
        seed: int,
        offsets: bytes,
        indexes: bytes,
        values: NativeBinary,
        keys: NativeBinary | None,
        /,
    ) -> bytes | None:
        """Hash rows as `consumerd.spark.lake.row_hash` does, into 64-bit numbers; return None if buffers do not fit.

        The validity of values and keys has a byte per row, 0 for null; their offsets have 32 bits.
        """
        ...

    def Filling(  # noqa: N802
        self,
        batch: object,
        values: list[bytes | None],
        times: list[int],
        wait: Callable[..., Any],
        clock: Callable[[], float] | None,
        overhead: int,
        /,
    ) -> NativeFilling:
        """A filling without room; its deliveries wait with `wait(batch, number)`. `clock`: the system's if None."""
        ...

    def MessageKind(self, partition: object, kind: type[Any], /) -> NativeKind:  # noqa: N802
        """Messages of `partition` that stand for named tuples of the class `kind`, of which it is the first field."""
        ...

    def Payloads(self, data: bytes | memoryview, /) -> NativePayloads:  # noqa: N802
        """An empty list of payloads for the message set `data`; a memoryview must be one of bytes."""
        ...

    def Records(  # noqa: N802
        self, data: bytes | memoryview, offset: int, aborted: list[tuple[int, int]], /
    ) -> NativeRecords:
        """An empty list of records for the record data `data`, fetched at `offset`; a memoryview must be one of bytes.

        `aborted`: producer id and first offset of each aborted transaction.
        """
        ...


def _load() -> tuple[NativeCodec | None, str]:
    """Return the native codec, if it is to be used, and a description of the codec in use."""
    if os.environ.get(PURE, "").lower() not in _OFF:
        return None, f"pure codec, because {PURE} is set"
    try:
        module = importlib.import_module("consumerd_native")
    except ModuleNotFoundError:
        return None, "pure codec"
    except ImportError as error:
        return None, f"pure codec, because consumerd-native cannot be loaded: {error}"
    codec = cast("NativeCodec", module)
    if getattr(codec, "INTERFACE", None) != INTERFACE:
        version = getattr(codec, "__version__", "of unknown version")
        return None, f"pure codec, because consumerd-native {version} is for another version of consumerd"
    return codec, f"native codec {codec.__version__}"


#: The native codec; None if the pure one is in use. As `codec`, without a call: for what each message passes through.
in_use: NativeCodec | None
in_use, _description = _load()


def describe() -> str:
    """Return a description of the codec in use, with the reason where it is not obvious."""
    return _description


def codec() -> NativeCodec | None:
    """Return the native codec; None if the pure one is in use."""
    return in_use


@contextmanager
def using(chosen: NativeCodec | None) -> Iterator[None]:
    """Run with another codec for a while: for tests and benchmarks that compare both."""
    global in_use  # noqa: PLW0603 - the one place that changes it
    before, in_use = in_use, chosen
    try:
        yield
    finally:
        in_use = before
