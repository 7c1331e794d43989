import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from consumerd.storage import CorruptLogError, Damage, OsFiles, OsSegmentFile, recover, walk
from consumerd.storage import recovery as recovery_module

Message = Callable[..., bytes]


def _file(path: Path, data: bytes) -> OsSegmentFile:
    path.write_bytes(data)
    return OsFiles().open(path, create=False)


def _recover(path: Path, data: bytes) -> tuple[bytes, Damage | None, dict[str, bytes]]:
    file = _file(path, data)
    try:
        _, damage = recover(OsFiles(), path, file)
    finally:
        file.close()
    others = {p.name: p.read_bytes() for p in path.parent.iterdir() if p != path}
    return path.read_bytes(), damage, others


def test_whole_messages_of_both_magics_are_kept(tmp_path: Path, message: Message) -> None:
    data = message(b"a") + message(b"bb", magic=0) + message(b"") + message(b"", magic=0)
    assert _recover(tmp_path / "0.kafka", data) == (data, None, {})


def test_every_cut_keeps_the_whole_messages_before_it(tmp_path: Path, message: Message) -> None:
    one, two = message(b"hello"), message(b"world", magic=0)
    data = one + two
    for cut in range(len(data) + 1):
        kept = data if cut == len(data) else one if cut >= len(one) else b""
        damage = None if len(kept) == cut else Damage.PARTIAL
        assert _recover(tmp_path / "0.kafka", data[:cut]) == (kept, damage, {})


@pytest.mark.parametrize(
    ("tail", "damage"),
    [
        (b"\0" * 100, Damage.BAD_SIZE),
        (b"\xff" * 100, Damage.BAD_SIZE),
        (struct.pack(">iB", 4, 1) + b"xxx", Damage.BAD_SIZE),
        (struct.pack(">iB", 5, 1) + b"xxxx", Damage.BAD_SIZE),
        (struct.pack(">iBBI", 9, 1, 0, 7) + b"abc", Damage.BAD_CRC),
        (struct.pack(">iBI", 8, 0, 7) + b"abc", Damage.BAD_CRC),
        (struct.pack(">iB", 1 << 30, 9) + b"x" * 50, Damage.PARTIAL),
        (b"abc", Damage.PARTIAL),
    ],
)
def test_a_torn_or_garbled_tail_is_cut(tmp_path: Path, message: Message, tail: bytes, damage: Damage) -> None:
    assert _recover(tmp_path / "0.kafka", message(b"a") + tail) == (message(b"a"), damage, {})


def test_what_follows_damage_in_the_middle_is_kept_aside(tmp_path: Path, message: Message) -> None:
    bad = message(b"hello")[:-1] + b"!"
    data = message(b"a") + bad + message(b"b") + b"torn"
    kept, damage, others = _recover(tmp_path / "0.kafka", data)
    assert (kept, damage) == (message(b"a"), Damage.BAD_CRC)
    assert others == {f"0.kafka.cut-{len(kept)}": bad + message(b"b") + b"torn"}


def test_unknown_magic_stops_everything_and_touches_nothing(tmp_path: Path, message: Message) -> None:
    path = tmp_path / "0.kafka"
    data = message(b"a") + struct.pack(">iBBI", 7, 2, 0, 0) + b"x"
    with pytest.raises(CorruptLogError, match=r"0\.kafka holds a message of unknown magic at byte 11: .*truncate"):
        _recover(path, data)
    assert path.read_bytes() == data


def test_messages_larger_than_the_window_and_across_its_edge(
    tmp_path: Path, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery_module, "_WINDOW", 64)
    data = b"".join(message(bytes([i]) * (i * 7 % 200)) for i in range(40))
    file = _file(tmp_path / "0.kafka", data)
    assert walk(file, len(data)) == (len(data), None)
    assert walk(file, len(data) - 1).damage is Damage.PARTIAL
    assert walk(file, len(data), start=len(message(b""))) == (len(data), None)
    file.close()
    bad = message(b"y" * 300)[:-1] + b"x"
    big = message(b"z" * 500)
    assert _recover(tmp_path / "0.kafka", data + bad + big)[2] == {f"0.kafka.cut-{len(data)}": bad + big}
