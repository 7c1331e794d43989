import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from consumerd.storage import OsFiles, OsSegmentFile, TailDamage, recover, walk
from consumerd.storage.log import recovery as recovery_module
from tests.support.forgetful_disk import ForgetfulDisk, PowerLostError

Message = Callable[..., bytes]


def _file(path: Path, data: bytes) -> OsSegmentFile:
    path.write_bytes(data)
    return OsFiles().open(path, create=False)


def _recover(path: Path, data: bytes) -> tuple[bytes, TailDamage | None, dict[str, bytes]]:
    file = _file(path, data)
    try:
        before = file.size()
        cut = recover(OsFiles(), path, file)
        assert before - file.size() == (cut.dropped if cut else 0)
    finally:
        file.close()
    others = {p.name: p.read_bytes() for p in path.parent.iterdir() if p != path}
    if cut is not None and cut.aside is not None:
        assert cut.aside.name in others
    return path.read_bytes(), cut.damage if cut else None, others


def test_keeps_whole_messages_of_both_magics(tmp_path: Path, message: Message) -> None:
    data = message(b"a") + message(b"bb", magic=0) + message(b"") + message(b"", magic=0)
    assert _recover(tmp_path / "0.kafka", data) == (data, None, {})


def test_truncation_keeps_the_whole_messages_before_it(tmp_path: Path, message: Message) -> None:
    one, two = message(b"hello"), message(b"world", magic=0)
    data = one + two
    for cut in range(len(data) + 1):
        kept = data if cut == len(data) else one if cut >= len(one) else b""
        damage = None if len(kept) == cut else TailDamage.PARTIAL
        assert _recover(tmp_path / "0.kafka", data[:cut]) == (kept, damage, {})


@pytest.mark.parametrize(
    ("tail", "damage"),
    [
        (b"\0" * 100, TailDamage.BAD_SIZE),
        (b"\xff" * 100, TailDamage.BAD_SIZE),
        (struct.pack(">iB", 4, 1) + b"xxx", TailDamage.BAD_SIZE),
        (struct.pack(">iB", 5, 1) + b"xxxx", TailDamage.BAD_SIZE),
        (struct.pack(">iB", 4, 1), TailDamage.BAD_SIZE),  # a header and nothing after it
        (struct.pack(">iBBI", 9, 1, 0, 7) + b"abc", TailDamage.BAD_CRC),
        (struct.pack(">iBI", 8, 0, 7) + b"abc", TailDamage.BAD_CRC),
        (struct.pack(">iB", 1 << 30, 9) + b"x" * 50, TailDamage.PARTIAL),
        (b"abc", TailDamage.PARTIAL),
    ],
)
def test_cuts_a_torn_or_garbled_tail(tmp_path: Path, message: Message, tail: bytes, damage: TailDamage) -> None:
    assert _recover(tmp_path / "0.kafka", message(b"a") + tail) == (message(b"a"), damage, {})


def test_keeps_aside_what_follows_damage_in_the_middle(tmp_path: Path, message: Message) -> None:
    bad = message(b"hello")[:-1] + b"!"
    data = message(b"a") + bad + message(b"b") + b"torn"
    kept, damage, others = _recover(tmp_path / "0.kafka", data)
    assert (kept, damage) == (message(b"a"), TailDamage.BAD_CRC)
    assert others == {f"0.kafka.cut-{len(kept)}": bad + message(b"b") + b"torn"}


def test_keeps_aside_intact_messages_after_lost_blocks(tmp_path: Path, message: Message) -> None:
    """No length leads to them any more: they are looked for."""
    data = message(b"a") + bytes(4096) + message(b"b") * 2 + bytes(100)
    kept, damage, others = _recover(tmp_path / "0.kafka", data)
    assert (kept, damage) == (message(b"a"), TailDamage.BAD_SIZE)
    assert others == {f"0.kafka.cut-{len(kept)}": data[len(kept) :]}


def test_keeps_aside_an_intact_message_one_byte_after_the_damage(tmp_path: Path, message: Message) -> None:
    data = message(b"a") + b"\xff" + message(b"b")
    kept, damage, others = _recover(tmp_path / "0.kafka", data)
    assert (kept, damage) == (message(b"a"), TailDamage.BAD_SIZE)
    assert others == {f"0.kafka.cut-{len(kept)}": data[len(kept) :]}


def test_keeps_aside_what_follows_a_damaged_empty_message(tmp_path: Path, message: Message) -> None:
    """An empty message alone is found by the length before it only: a search finds empty messages everywhere."""
    data = message(b"a") + struct.pack(">iBI", 5, 0, 1) + message(b"")
    kept, damage, others = _recover(tmp_path / "0.kafka", data)
    assert (kept, damage) == (message(b"a"), TailDamage.BAD_CRC)
    assert others == {f"0.kafka.cut-{len(kept)}": data[len(kept) :]}


def test_cuts_and_keeps_aside_an_unknown_magic(tmp_path: Path, message: Message) -> None:
    """0.7.2 does not start with it. It may be damage or a later format: no bytes are deleted."""
    path = tmp_path / "0.kafka"
    later = struct.pack(">iBBI", 7, 2, 0, 0) + b"x"
    assert _recover(path, message(b"a") + later) == (message(b"a"), TailDamage.UNKNOWN_MAGIC, {"0.kafka.cut-11": later})
    # the same again, at the same place: the first one's bytes stay
    _, _, others = _recover(path, message(b"a") + later[:-1] + b"y")
    assert others == {"0.kafka.cut-11": later, "0.kafka.cut-11-2": later[:-1] + b"y"}


@pytest.mark.parametrize("power_lost", [True, False])
def test_writes_the_kept_bytes_before_it_cuts(message: Message, power_lost: bool) -> None:
    """Wherever the machine stops: the segment still holds the bytes, or the copy beside it does, whole."""
    directory = Path("/log")
    path = directory / "0.kafka"
    whole, rest = message(b"a"), message(b"hello")[:-1] + b"!" + message(b"b") * 20
    finished = 0
    for seed in range(40):
        for changes in range(12):
            disk = ForgetfulDisk(random.Random(seed))
            files = OsFiles(disk)
            files.make_directory(directory)
            files.replace(path, [whole + rest])
            disk.lose_power_after(changes)
            try:
                recover(files, path, files.open(path, create=False))
                finished += 1
            except PowerLostError:
                pass
            disk.restart(power_lost=power_lost)
            after = OsFiles(disk)
            segment, aside = after.read(path), after.read(directory / f"0.kafka.cut-{len(whole)}")
            assert segment is not None
            assert segment[: len(whole)] == whole
            assert rest in (segment[len(whole) :], aside)
            assert aside in (None, rest)  # never half of it
    assert finished


BLOCK = 512


def _blocks(message: Message) -> tuple[list[bytes], bytes]:
    """Messages of all sizes, some of a block's and some over several, and all of them in one."""
    rng = random.Random(8)
    made = [message(rng.randbytes(rng.choice([0, 5, 90, 502, 503, 1300])), magic=rng.randrange(2)) for _ in range(25)]
    return made, b"".join(made)


def _before(made: list[bytes], position: int) -> bytes:
    """The messages that end at or before `position`."""
    kept = b""
    for one in made:
        if len(kept) + len(one) > position:
            break
        kept += one
    return kept


def test_recovers_from_a_lost_block_at_every_position(tmp_path: Path, message: Message) -> None:
    """Spec 003, Guarantees, the first kind: the file ends before it or, where later ones were written, has a hole."""
    made, data = _blocks(message)
    for lost in range(0, len(data), BLOCK):
        kept, damage, others = _recover(tmp_path / "0.kafka", data[:lost])
        assert kept == _before(made, lost)
        assert damage is (None if len(kept) == lost else TailDamage.PARTIAL)
        assert others == {}
        holed = data[:lost] + bytes(min(BLOCK, len(data) - lost)) + data[lost + BLOCK :]
        kept, damage, others = _recover(tmp_path / "0.kafka", holed)
        assert damage is not None
        assert kept == _before(made, lost)
        following = len(_before(made, lost + BLOCK)) < len(data) - len(made[-1])
        assert list(others.values()) == ([holed[len(kept) :]] if following else [])
        (tmp_path / f"0.kafka.cut-{len(kept)}").unlink(missing_ok=True)


@pytest.mark.parametrize("kind", ["zeros", "ones", "noise", "text"])
def test_recovers_from_a_nonsense_block_at_every_position(tmp_path: Path, message: Message, kind: str) -> None:
    """The second kind: the file has grown by a block that was never written, wherever the data stopped."""
    made, data = _blocks(message)
    rng = random.Random(9)
    for end in range(0, len(data), BLOCK):
        nonsense = {
            "zeros": bytes(BLOCK),
            "ones": b"\xff" * BLOCK,
            "noise": rng.randbytes(BLOCK),
            "text": (b"2011-03-04 12:00:00 INFO nothing to see here\n" * 12)[:BLOCK],
        }[kind]
        kept, damage, _ = _recover(tmp_path / "0.kafka", data[:end] + nonsense)
        assert kept == _before(made, end)
        assert damage is not None
    for boundary in range(len(made)):  # and right after a message, where the invalid bytes begin with a length
        good = b"".join(made[:boundary])
        assert _recover(tmp_path / "0.kafka", good + rng.randbytes(BLOCK))[0] == good


def test_recovers_messages_larger_than_the_window_and_across_its_edge(
    tmp_path: Path, message: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery_module, "_WINDOW", 64)
    data = b"".join(message(bytes([i]) * (i * 7 % 200)) for i in range(40))
    file = _file(tmp_path / "0.kafka", data)
    assert walk(file, len(data)) == (len(data), None)
    assert walk(file, len(data) - 1).damage is TailDamage.PARTIAL
    assert walk(file, len(data), start=len(message(b""))) == (len(data), None)
    file.close()
    bad = message(b"y" * 300)[:-1] + b"x"
    big = message(b"z" * 500)
    assert _recover(tmp_path / "0.kafka", data + bad + big)[2] == {f"0.kafka.cut-{len(data)}": bad + big}


@pytest.mark.parametrize("window", [16, 64, 1000])
def test_walks_no_further_than_the_given_size(
    tmp_path: Path, message: Message, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """The messages after it are intact, too."""
    monkeypatch.setattr(recovery_module, "_WINDOW", window)
    made = [message(bytes([i]) * (i * 7 % 40)) for i in range(20)]
    file = _file(tmp_path / "0.kafka", b"".join(made))
    end = 0
    for one in made:
        assert walk(file, end + len(one) - 1) == (end, TailDamage.PARTIAL)
        end += len(one)
        assert walk(file, end) == (end, None)
    file.close()


@pytest.mark.parametrize("window", [64, 1 << 20])
def test_looks_where_the_damaged_length_points_to_beyond_the_search(
    tmp_path: Path, message: Message, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """The damaged message is larger than what is searched for intact ones; the one after it may not fit the window."""
    monkeypatch.setattr(recovery_module, "_WINDOW", window)
    monkeypatch.setattr(recovery_module, "RESYNC_WINDOW", 64)
    bad = message(b"y" * 300)[:-1] + b"x"
    for rest, is_kept in (
        (message(b"b"), True),
        (message(b"b", magic=0), True),
        (message(b""), True),
        (message(b"b" * 500), True),
        (b"", False),
        (bad, False),
        (message(b"b")[:-1], False),
        (bytes(50), False),
    ):
        kept, damage, others = _recover(tmp_path / "0.kafka", message(b"a") + bad + rest)
        assert (kept, damage) == (message(b"a"), TailDamage.BAD_CRC)
        assert list(others.values()) == ([bad + rest] if is_kept else [])
        for name in others:
            (tmp_path / name).unlink()


def test_numbers_the_files_that_keep_what_was_cut_at_one_place(tmp_path: Path, message: Message) -> None:
    path = tmp_path / "0.kafka"
    tails = [struct.pack(">iBBI", 7, 2, 0, 0) + bytes([number]) for number in range(4)]
    for tail in tails:
        _recover(path, tail)
    assert [(tmp_path / f"0.kafka.cut-0{end}").read_bytes() for end in ("", "-2", "-3", "-4")] == tails


@pytest.mark.parametrize("size", [63, 64, 65, 128, 130])
def test_keeps_all_of_the_bytes_that_it_cuts(
    tmp_path: Path, message: Message, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(recovery_module, "_WINDOW", 64)
    tail = struct.pack(">iB", size - 4, 2) + bytes(range(size - 5))
    assert _recover(tmp_path / "0.kafka", message(b"a") + tail)[2] == {"0.kafka.cut-11": tail}


@pytest.mark.parametrize(
    ("tail", "damage"),
    [
        (b"\0\0\0\x05", TailDamage.PARTIAL),  # the magic is missing
        (struct.pack(">iB", 5, 0) + b"xxxx", TailDamage.BAD_CRC),
        (struct.pack(">iBI", 5, 0, 0), None),  # the smallest messages, with an empty payload
        (struct.pack(">iBBI", 6, 1, 0, 0), None),
        (struct.pack(">iBBI", 6, 1, 255, 0), None),  # the CRC does not cover the attributes
        (struct.pack(">iBBI", 7, 1, 0, 0), TailDamage.PARTIAL),
        (struct.pack(">iBBI", 6, 1, 0, 1), TailDamage.BAD_CRC),
        (struct.pack(">iBBI", 6, 2, 0, 0), TailDamage.UNKNOWN_MAGIC),
    ],
)
def test_judges_the_smallest_messages(tmp_path: Path, message: Message, tail: bytes, damage: TailDamage | None) -> None:
    kept, found, _ = _recover(tmp_path / "0.kafka", message(b"a") + tail)
    assert found is damage
    assert kept == message(b"a") + (b"" if damage else tail)
