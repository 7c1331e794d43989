from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from consumerd.storage import DamagedArchiveError
from consumerd.storage.log.archive_tar import TarKind, TarMember, list_members, read_members
from tests.fuzz.laws_archive import Dribble

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
FILES = {
    "events-0/00000000000000000000.kafka": b"x" * 600,
    "empty": b"",
    "block": b"y" * 512,
    "two blocks": b"z" * 1024,
    "f" * 100: b"longest name without a prefix",
    "f" * 70 + "/" + "g" * 60: b"prefixed",
    "été/\N{SNOWMAN}": b"unicode",
}


def made(files: dict[str, bytes], form: int, **common: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form, pax_headers=common) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 1_300_000_000
            tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


def contents(data: bytes) -> dict[str, bytes]:
    found = {}
    for member, stream in read_members(Dribble(data, 7)):
        pieces = []
        while piece := stream.read(100):
            pieces.append(piece)
        found[member.name] = b"".join(pieces)
        assert member.kind is not TarKind.FILE or len(found[member.name]) == member.size
    return found


def patched(data: bytes, at: int, patch: bytes) -> bytes:
    """`data` with another header field, its sum put right."""
    header = bytearray(data[:512])
    header[at : at + len(patch)] = patch
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data[512:]


@pytest.mark.parametrize("form", FORMATS)
def test_reads_every_tar_format(form: int) -> None:
    files = dict(FILES)
    if form != tarfile.USTAR_FORMAT:
        files["n" * 300 + "?"] = b"long"
    data = made(files, form)
    assert contents(data) == files
    listed = list_members(io.BytesIO(data))
    assert {member.name: data[member.position : member.position + member.size] for member in listed} == files
    assert {member.modified for member in listed} == {1_300_000_000}


@pytest.mark.parametrize("form", FORMATS)
def test_skips_members_that_are_not_read(form: int) -> None:
    names = [member.name for member, _ in read_members(io.BytesIO(made(FILES, form)))]
    assert names == list(FILES)


def test_agrees_with_the_tar_command(tmp_path: Path) -> None:
    if shutil.which("tar") is None:
        pytest.skip("there is no tar command")
    (tmp_path / "in" / ("deep" * 20)).mkdir(parents=True)
    (tmp_path / "in" / ("deep" * 20) / ("name" * 20)).write_bytes(b"long")
    (tmp_path / "in" / "short").write_bytes(b"short" * 1000)
    (tmp_path / "in" / "link").symlink_to("short")
    (tmp_path / "in" / "hard").hardlink_to(tmp_path / "in" / "short")
    with (tmp_path / "in" / "holes").open("wb") as file:
        file.truncate(10 << 20)
        file.seek(5 << 20)
        file.write(b"middle")
    for form in ("gnu", "pax", "ustar"):
        out = tmp_path / f"{form}.tar"
        sparse = ["--sparse"] if form != "ustar" else []
        subprocess.run(
            ["tar", "--create", f"--format={form}", *sparse, "--file", out, "--directory", tmp_path, "in"],
            check=True,
            timeout=60,
        )
        kinds = {
            member.name.rpartition("/")[2]: member.kind for member, _ in read_members(io.BytesIO(out.read_bytes()))
        }
        assert kinds["link"] is TarKind.LINK
        assert sorted((kinds["hard"].name, kinds["short"].name)) == ["FILE", "LINK"]
        assert kinds["name" * 20] is TarKind.FILE
        if sparse:
            assert TarKind.SPARSE in kinds.values()
        assert contents(out.read_bytes())[f"in/{'deep' * 20}/{'name' * 20}"] == b"long"


@pytest.mark.parametrize("target", ["elsewhere", "else/" * 30])
def test_classifies_links_folders_and_devices(target: str) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for number, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE)):
            member = tarfile.TarInfo(f"member-{number}")
            member.type, member.linkname = kind, target
            tar.addfile(member)
    data = patched(file.getvalue(), 124, b"00000001000\0")  # of a link, the size tells what it leads to
    assert [member.kind for member, _ in read_members(io.BytesIO(data))] == [
        TarKind.LINK, TarKind.LINK, TarKind.OTHER, TarKind.OTHER
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("type_flag", "kind", "content"),
    [
        (b"0", TarKind.FILE, b"x" * 600),
        (b"\0", TarKind.FILE, b"x" * 600),
        (b"7", TarKind.FILE, b"x" * 600),
        (b"S", TarKind.SPARSE, b""),
        (b"?", TarKind.OTHER, b""),
    ],
)
def test_only_regular_files_have_bytes(type_flag: bytes, kind: TarKind, content: bytes) -> None:
    data = patched(made({"a": b"x" * 600, "b": b"y"}, tarfile.GNU_FORMAT), 156, type_flag)
    assert contents(data) == {"a": content, "b": b"y"}
    assert [member.kind for member in list_members(io.BytesIO(data))] == [kind, TarKind.FILE]


def test_marks_unsafe_member_names() -> None:
    data = made({"/etc/passwd": b"", "a/../../b": b"", "./c/d": b"", "..": b"", "a..b/c": b""}, tarfile.PAX_FORMAT)
    assert [(member.name, member.is_unsafe) for member, _ in read_members(io.BytesIO(data))] == [
        ("etc/passwd", False),
        ("a/../../b", True),
        ("c/d", False),
        ("..", True),
        ("a..b/c", False),
    ]


def test_reads_names_that_are_not_utf_8() -> None:
    data = patched(made({"name": b"x"}, tarfile.USTAR_FORMAT), 0, b"\xff\xfe")
    assert list(contents(data)) == ["\\xff\\xfeme"]


def test_reads_a_prefix_of_the_largest_length_and_of_any_bytes() -> None:
    data = patched(made({"name": b"x"}, tarfile.USTAR_FORMAT), 345, b"\xff" * 155 + b"padding")
    assert list(contents(data)) == ["\\xff" * 155 + "/name"]


def test_reads_concatenated_tars_as_one() -> None:
    data = made({"a": b"1"}, tarfile.GNU_FORMAT) + made({"b": b"2"}, tarfile.PAX_FORMAT)
    assert contents(data) == {"a": b"1", "b": b"2"}


def test_applies_global_and_local_pax_records() -> None:
    data = made({"a": b"1", "b" * 200: b"2", "c": b"3"}, tarfile.PAX_FORMAT, path="common")
    assert [member.name for member, _ in read_members(io.BytesIO(data))] == ["common", "b" * 200, "common"]


def record(text: bytes, digits: int = 2) -> bytes:
    """A pax record whose length has this many digits."""
    return b"%0*d %s\n" % (digits, digits + len(text) + 2, text)


def records(data: bytes) -> bytes:
    return long_header(b"x", len(data)) + data.ljust(512, b"\0")


@pytest.mark.parametrize(
    "data",
    [
        record(b"size=600"),
        record(b"\xff\xfe=ignored") + record(b"size=600"),
        record(b"size=600", digits=20),
        record(b"size=%020d" % 600),
    ],
    ids=["size", "others", "length of 20 digits", "size of 20 digits"],
)
def test_size_in_pax_records_replaces_that_of_the_header(data: bytes) -> None:
    members = patched(made({"a": b"x" * 600, "b": b"y"}, tarfile.USTAR_FORMAT), 124, b"00000000000\0")
    assert contents(records(data) + members) == {"a": b"x" * 600, "b": b"y"}


@pytest.mark.parametrize("field", [b" " * 12, bytes(12)])
def test_member_without_a_size_is_empty(field: bytes) -> None:
    assert contents(patched(made({"a": b"", "b": b"y"}, tarfile.USTAR_FORMAT), 124, field)) == {"a": b"", "b": b"y"}


def test_reads_binary_sizes() -> None:
    data = patched(made({"a": b"12345"}, tarfile.GNU_FORMAT), 124, b"\x80" + (5).to_bytes(11))
    assert contents(data) == {"a": b"12345"}


@pytest.mark.parametrize("name", ["\u00e9", "\u00e9\x7f", "\u0080"])
def test_accepts_checksums_of_signed_bytes(name: str) -> None:
    header = bytearray(made({name: b""}, tarfile.USTAR_FORMAT)[:512])
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % (sum(byte - 256 if byte > 127 else byte for byte in header))
    assert list(contents(bytes(header) + bytes(1024))) == [name]


@pytest.mark.parametrize("form", FORMATS)
def test_detects_truncation_at_every_byte(form: int) -> None:
    data = made({"a": b"x" * 700, "b" * 90: b"y"}, form)
    whole = len(data.rstrip(b"\0"))
    for cut in [*range(0, whole, 97), 512, 1024, 1536]:
        with pytest.raises(DamagedArchiveError, match="truncated"):
            contents(data[:cut])
    with pytest.raises(DamagedArchiveError, match="truncated"):
        list_members(io.BytesIO(data[: whole - 512]))


def long_header(kind: bytes, size: int) -> bytes:
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"junk" * 1000, "no valid header at byte 0"),
        (made({"a": b"x"}, tarfile.GNU_FORMAT)[:1024] + b"junk" * 1000, "no valid header at byte 1024"),
        (long_header(b"x", 1 << 40), "a header of 1099511627776 bytes"),
        (long_header(b"L", 8 << 30) + bytes(1024), "a header of 8589934592 bytes"),
        (long_header(b"0", 1 << 60), "of impossible size"),
        (patched(made({"a": b"x"}, tarfile.GNU_FORMAT), 124, b"\xff" * 12), "of impossible size"),
        (patched(made({"a": b"x"}, tarfile.GNU_FORMAT), 124, b"00000000009\0"), "of impossible size"),
        (patched(made({"a": b"x"}, tarfile.GNU_FORMAT), 124, b"0000000001?\0"), "of impossible size"),
        (patched(made({"a": b"x"}, tarfile.GNU_FORMAT), 124, b"\x80\1" + bytes(9) + b"\1"), "of impossible size"),
        (long_header(b"x", 5) + b"7 a=b".ljust(512, b"\0"), "broken pax records"),
        (long_header(b"x", 6) + b"0 a=b\n".ljust(512, b"\0"), "broken pax records"),
        (long_header(b"x", 6) + b"6 abc\n".ljust(512, b"\0"), "broken pax records"),
        (long_header(b"x", 600) + (b"9" * 600).ljust(1024, b"\0"), "broken pax records"),
        (records(b"x path=abc\n"), "broken pax records"),
        (records(b"11 path=abc"), "broken pax records"),
        (records(b"13 path=abc\n"), "broken pax records"),
        (records(record(b"path=abc", digits=21)), "broken pax records"),
        (records(record(b"size=12x45")) + made({"a": b"x"}, tarfile.GNU_FORMAT), "of impossible size"),
        (records(record(b"size=%021d" % 1)) + made({"a": b"x"}, tarfile.GNU_FORMAT), "of impossible size"),
    ],
)
def test_rejects_hostile_headers(data: bytes, sentence: str) -> None:
    with pytest.raises(DamagedArchiveError, match=sentence):
        contents(data)


def test_accepts_sizes_up_to_a_pebibyte() -> None:
    most = 1 << 50
    data = made({"a": b"x"}, tarfile.GNU_FORMAT)
    member, _ = next(read_members(io.BytesIO(patched(data, 124, b"\x80" + most.to_bytes(11)))))
    assert member.size == most
    with pytest.raises(DamagedArchiveError, match="of impossible size"):
        next(read_members(io.BytesIO(patched(data, 124, b"\x80" + (most + 1).to_bytes(11)))))


def test_rejects_a_member_larger_than_the_file() -> None:
    data = patched(made({"a": b"x"}, tarfile.GNU_FORMAT), 124, b"77777777777\0")
    ((member, stream),) = [next(read_members(io.BytesIO(data)))]
    assert member.size == 8**11 - 1
    assert stream.read(1 << 20) == data[512:]
    with pytest.raises(DamagedArchiveError, match="truncated"):
        stream.read(1)
    with pytest.raises(DamagedArchiveError, match="truncated"):
        list_members(io.BytesIO(data))


def test_member_with_a_relative_path_is_safe() -> None:
    assert TarMember("a/b", 1, TarKind.FILE, 512, 0).is_unsafe is False


def pax(size: int) -> bytes:
    """A pax header of that many bytes, which renames the member after it to `renamed`."""
    name = b"16 path=renamed\n"
    comment = b"%d comment=" % (size - len(name))
    records = name + comment.ljust(size - len(name) - 1, b"x") + b"\n"
    assert len(records) == size
    return long_header(b"x", size) + records.ljust(-(-size // 512) * 512, b"\0")


def test_reads_headers_of_headers_up_to_a_mebibyte() -> None:
    member = made({"a": b"1"}, tarfile.USTAR_FORMAT)
    assert [found.name for found, _ in read_members(io.BytesIO(pax(1 << 20) + member))] == ["renamed"]
    with pytest.raises(DamagedArchiveError, match="a header of 1048577 bytes"):
        list(read_members(io.BytesIO(pax((1 << 20) + 1) + member)))


def test_member_without_a_time_has_the_time_zero() -> None:
    data = patched(made({"a": b"1"}, tarfile.USTAR_FORMAT), 136, b"not a number")
    assert [member.modified for member, _ in read_members(io.BytesIO(data))] == [0]
    data = patched(made({"a": b"1"}, tarfile.USTAR_FORMAT), 136, bytes(12))
    assert [member.modified for member, _ in read_members(io.BytesIO(data))] == [0]


def test_reads_nothing_of_a_member_that_has_been_read() -> None:
    members = read_members(io.BytesIO(made({"a": b"12"}, tarfile.USTAR_FORMAT)))
    member, stream = next(members)
    assert stream.read(0) == b""
    assert stream.read(100) == b"12"
    assert (stream.read(1), stream.left, member.size) == (b"", 0, 2)
    assert [*members] == []
