"""Whatever happens to a log: what was flushed stays, what is kept is a prefix of what was appended."""

from __future__ import annotations

import struct
import tempfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from consumerd.storage import CLEAN_MARKER, Log, LogManager, LogSettings, OsFiles

SETTINGS = LogSettings(segment_bytes=400, flush_messages=5)


def _message(payload: bytes, magic: int, wrapped: bool) -> bytes:
    if wrapped:
        payload = zlib.compress(payload)  # to the log, a wrapper is a message like any other
    head = bytes([magic, 1 if wrapped else 0][: magic + 1])
    body = head + struct.pack(">I", zlib.crc32(payload)) + payload
    return struct.pack(">i", len(body)) + body


_messages = st.builds(_message, st.binary(max_size=150), st.sampled_from([0, 1]), st.booleans())


@dataclass(frozen=True)
class Append:
    messages: list[bytes]


@dataclass(frozen=True)
class Flush:
    pass


@dataclass(frozen=True)
class Stop:
    """Clean, but another program may then have grown the last file."""

    grown_by: bytes = b""


@dataclass(frozen=True)
class Crash:
    """A crash cuts unflushed bytes at a fraction, or replaces them from there on; then junk may follow."""

    keep: float
    overwrite: int | None
    junk: bytes


_crashes = st.builds(
    Crash,
    st.floats(0, 1),
    st.sampled_from([None, 0, 1]),  # any other byte, where a magic stands, makes a start fail, and rightly so
    # zeros, a torn header, or anything that cannot pass for a message of an unknown magic
    st.sampled_from(
        [b"", b"\0" * 40, b"\0\0", b"\x7f\xff\xff\xff\x01\x00abc", b"\0\0\0\x09\x01\x00\x00\x00\x00\x00abc"]
    ),
)
_steps = st.lists(
    st.one_of(
        st.builds(Append, st.lists(_messages, min_size=1, max_size=4)),
        st.builds(Append, st.lists(_messages, min_size=1, max_size=4)),
        st.just(Flush()),
        st.builds(Stop, st.sampled_from([b"", b"", b"\0\0\0"])),
        _crashes,
    ),
    max_size=30,
)


@dataclass
class Model:
    """The expected content of the log: every message in order, and the number of flushed bytes."""

    messages: list[bytes] = field(default_factory=list)
    flushed: int = 0

    @property
    def data(self) -> bytes:
        return b"".join(self.messages)

    def cut(self, end: int) -> None:
        """Take over where recovery stopped; it must be a boundary at or after what was flushed."""
        assert end >= self.flushed
        kept = 0
        for count, message in enumerate(self.messages):
            if kept == end:
                del self.messages[count:]
                break
            kept += len(message)
        assert kept == end, "recovery stopped within a message or made one up"
        self.flushed = end


def _contents(log: Log) -> bytes:
    """All that a reader can see, fetched in pieces that do not fit the messages."""
    out = b""
    while piece := log.read(len(out), 97):
        out += piece
    return out


@settings(deadline=None, max_examples=150)
@given(_steps)
def test_log_keeps_what_it_flushed(steps: list[Append | Flush | Stop | Crash]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), steps)


def run(folder: Path, steps: list[Append | Flush | Stop | Crash]) -> None:
    files = OsFiles()
    model = Model()
    manager = LogManager(folder, files, lambda topic: SETTINGS)
    manager.open(0.0)
    log, _ = manager.get_or_create("t", 0, 0.0)
    for step in [*steps, Crash(1.0, None, b""), Stop()]:
        match step:
            case Append(messages):
                if log.roll_due(0.0):
                    log.roll(0.0)
                    model.flushed = len(model.data)
                assert log.append(b"".join(messages), len(messages), 0.0) == len(model.data)
                model.messages += messages
                if log.flush_due():
                    log.flush(0.0)
                    model.flushed = len(model.data)
            case Flush():
                log.flush(0.0)
                model.flushed = len(model.data)
            case Stop(grown_by):
                last = log.segments[-1].path
                manager.close(0.0)
                with last.open("ab") as file:
                    file.write(grown_by)
                model.flushed = len(model.data)
                manager, log = _reopened(folder, model)
            case Crash():
                last, flushed = log.segments[-1].path, log.segments[-1].flushed
                manager.abandon()
                _damage(last, flushed, step)
                assert not (folder / CLEAN_MARKER).exists()
                manager, log = _reopened(folder, model)
        assert log.end_offset == len(model.data)
        assert log.flushed_offset == model.flushed
        assert _contents(log) == model.data[: model.flushed]
    manager.abandon()


def _damage(path: Path, flushed: int, crash: Crash) -> None:
    data = path.read_bytes()
    cut = flushed + round(crash.keep * (len(data) - flushed))
    lost = b"" if crash.overwrite is None else bytes([crash.overwrite]) * (len(data) - cut)
    path.write_bytes(data[:cut] + lost + crash.junk)


def _reopened(folder: Path, model: Model) -> tuple[LogManager, Log]:
    manager = LogManager(folder, OsFiles(), lambda topic: SETTINGS)
    manager.open(0.0)
    log = manager.get("t", 0)
    assert log is not None
    model.cut(log.end_offset)
    return manager, log


def test_recovers_a_log_truncated_at_every_byte() -> None:
    """The one case that must never fail, exhaustively: a set, torn anywhere."""
    flushed = [_message(b"kept", 1, False), _message(b"", 0, False)]
    torn = [_message(b"a" * 20, 0, False), _message(b"b" * 30, 1, True), _message(b"", 1, False)]
    size = len(b"".join(torn))
    for cut in range(size + 1):
        with tempfile.TemporaryDirectory() as folder:
            run(Path(folder), [Append(flushed), Flush(), Append(torn), Crash(cut / size, None, b"")])
