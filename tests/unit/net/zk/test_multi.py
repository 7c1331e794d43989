"""The bytes of opcode 14, written by hand from ZooKeeper's jute records (MultiHeader, CreateRequest, ErrorResponse)."""

from __future__ import annotations

import struct

import pytest
from aiozk import protocol

from consumerd.base.ports import Check, Create, Delete, Operation, SetData
from consumerd.net.zk.acl import parse_acl
from consumerd.net.zk.errors import BadReply
from consumerd.net.zk.multi import MultiRequest, encode_operations, first_failure

END = bytes.fromhex("ffffffff 01 ffffffff")


def rooted(path: str) -> str:
    return "/r" + path


def test_encodes_requests_as_the_jute_records_say() -> None:
    body = encode_operations([Check("/a", 7), SetData("/b", b"xy"), Delete("/c", 1)], rooted, parse_acl("open"))
    assert body == bytes.fromhex(
        "0000000d 00 ffffffff 00000004 2f722f61 00000007"
        "00000005 00 ffffffff 00000004 2f722f62 00000002 7879 ffffffff"
        "00000002 00 ffffffff 00000004 2f722f63 00000001"
        "ffffffff 01 ffffffff"
    )
    assert MultiRequest(body).serialize() == bytes.fromhex("0000000e") + body


@pytest.mark.parametrize(("data", "packed"), [(None, "ffffffff"), (b"", "00000000"), (b"z", "00000001 7a")])
def test_encodes_creates_with_null_data_and_the_acl(data: bytes | None, packed: str) -> None:
    body = encode_operations([Create("/a", data, ephemeral=True)], rooted, parse_acl("open"))
    world = "00000001 0000001f 00000005 776f726c64 00000006 616e796f6e65"
    assert body == bytes.fromhex(f"00000001 00 ffffffff 00000004 2f722f61 {packed} {world} 00000001") + END


def test_library_reads_its_requests_alike() -> None:
    """Our packing and aiozk's agree where both can say it."""
    acl = parse_acl(["digest:u:h:rw", "world:anyone:r"])
    theirs = protocol.TransactionRequest()
    theirs.add(protocol.CheckVersionRequest(path="/r/\u00e9", version=-1))
    create = protocol.CreateRequest(path="/r/n", data=None, acl=acl)
    create.set_flags()
    theirs.add(create)
    theirs.add(protocol.SetDataRequest(path="/r/n", data=b"", version=3))
    theirs.add(protocol.DeleteRequest(path="/r/n", version=-1))
    ours: list[Operation] = [Check("/\u00e9"), Create("/n", None), SetData("/n", b"", 3), Delete("/n")]
    assert MultiRequest(encode_operations(ours, rooted, acl)).serialize() == theirs.serialize()


def ok(kind: int, body: bytes = b"") -> bytes:
    return struct.pack("!i?i", kind, False, 0) + body


def failed(code: int) -> bytes:
    return struct.pack("!i?ii", -1, False, code, code)


def test_decodes_a_reply_without_errors() -> None:
    path = struct.pack("!i", 2) + b"/a"
    assert first_failure(ok(13) + ok(5, bytes(68)) + ok(1, path) + ok(15, path + bytes(68)) + ok(2) + END) is None
    assert first_failure(END) is None


@pytest.mark.parametrize("path", [b"", b"/a"])
@pytest.mark.parametrize("kind", [1, 15])
def test_finds_the_failure_after_a_created_node(kind: int, path: bytes) -> None:
    created = struct.pack("!i", len(path)) + path + bytes(68 if kind == 15 else 0)
    assert first_failure(ok(kind, created) + failed(-110) + END) == (1, -110)


@pytest.mark.parametrize("index", [0, 1, 4])
def test_first_specific_code_names_the_failed_operation(index: int) -> None:
    codes = [0] * index + [-101] + [-2] * (4 - index)
    assert first_failure(b"".join(map(failed, codes)) + END) == (index, -101)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        END[:5],
        failed(-101)[:10],
        ok(1),
        ok(1, struct.pack("!i", -1)),
        ok(1, struct.pack("!i", -13)),  # leads back to its own beginning
        ok(5),
        ok(77) + END,
        ok(1, b"\x7f\xff\xff\xff"),
    ],
)
def test_rejects_broken_replies(payload: bytes) -> None:
    with pytest.raises(BadReply):
        first_failure(payload)
