from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Generator

import pytest

from consumerd.base import native
from consumerd.wire import EncodeError, FrameError
from consumerd.wire.v07 import (
    EARLIEST,
    LATEST,
    EncodedProduceRequest,
    FetchRequest,
    MultiFetchRequest,
    MultiProduceRequest,
    OffsetsRequest,
    ProduceRequest,
    Request,
    RequestType,
    decode_request,
    decode_request_steps,
    decode_single_request,
    encode_message_set,
)
from consumerd.wire.v07.requests import _frame

HELLO = bytes.fromhex("0000000b 01 00 3610a686") + b"hello"
FETCH = FetchRequest("dogs", 3, 1 << 40, 307200)
PRODUCE = ProduceRequest("dogs", 2, HELLO)

# Written by hand from spec 000: length, type, topic length, topic, partition, and what each request adds.
VECTORS: list[tuple[Request, str]] = [
    (FETCH, "00000018 0001 0004 646f6773 00000003 0000010000000000 0004b000"),
    (PRODUCE, f"0000001f 0000 0004 646f6773 00000002 0000000f {HELLO.hex()}"),
    (ProduceRequest("d", -1, b""), "0000000d 0000 0001 64 ffffffff 00000000"),
    (OffsetsRequest("dogs", 0, LATEST, 10), "00000018 0004 0004 646f6773 00000000 ffffffffffffffff 0000000a"),
    (OffsetsRequest("dogs", 0, EARLIEST, 1), "00000018 0004 0004 646f6773 00000000 fffffffffffffffe 00000001"),
    (OffsetsRequest("dogs", 0, 1324306324402, -1), "00000018 0004 0004 646f6773 00000000 0000013456cedbb2 ffffffff"),
    (FetchRequest("", 0, 0, 1), "00000014 0001 0000 00000000 0000000000000000 00000001"),
    (MultiFetchRequest(()), "00000004 0002 0000"),
    (
        MultiFetchRequest((FETCH, FetchRequest("c", 0, -1, -100))),
        "0000002d 0002 0002 0004 646f6773 00000003 0000010000000000 0004b0000001 63 00000000 ffffffffffffffff ffffff9c",
    ),
    (MultiProduceRequest(()), "00000004 0003 0000"),
    (
        MultiProduceRequest((PRODUCE, ProduceRequest("c", 0, b""))),
        f"0000002c 0003 0002 0004 646f6773 00000002 0000000f {HELLO.hex()} 0001 63 00000000 00000000",
    ),
    # The length of a topic counts bytes, not characters.
    (FetchRequest("привет", 0, 0, 1), "00000020 0001 000c d0bfd180d0b8d0b2d0b5d182 00000000 0000000000000000 00000001"),
]


@pytest.mark.parametrize(("request_", "frame"), VECTORS)
def test_encodes_requests(request_: Request, frame: str) -> None:
    assert request_.encode() == bytes.fromhex(frame)


@pytest.mark.parametrize(("request_", "frame"), VECTORS)
def test_decodes_requests(request_: Request, frame: str) -> None:
    body = bytes.fromhex(frame)[4:]
    assert decode_request(body) == request_
    assert decode_request(memoryview(body)) == request_


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("0005", "request type 5 does not exist"),
        ("ffff", "request type -1 does not exist"),
        ("0063 616263", "request type 99 does not exist"),
        ("0001 ffff 00000000 0000000000000000 00000001", "a topic name of -1 bytes"),
        ("0000 0001 64 00000000 ffffffff", "a message set of -1 bytes"),
        ("0000 0001 64 00000000 000003e8 616263", "a message set of 1000 bytes where 3 are left"),
        ("0002 ffff", "a request with -1 entries"),
        ("0003 8000", "a request with -32768 entries"),
        ("0002 7fff", "ends within a field"),
        ("0001 0001 64", "a request of 5 bytes ends within a field"),
        ("0001 0002 64", "a topic name of 2 bytes where 1 are left"),
    ],
)
def test_rejects_requests_that_close_the_connection(body: str, message: str) -> None:
    with pytest.raises(FrameError, match=message):
        decode_request(bytes.fromhex(body))


def test_decodes_a_topic_that_is_not_utf_8_to_an_invalid_one() -> None:
    request = decode_request(bytes.fromhex("0001 0002 ff41 00000000 0000000000000000 00000001"))
    assert isinstance(request, FetchRequest)
    assert request.topic == "\ufffdA"


@pytest.mark.parametrize(
    "request_",
    [
        FetchRequest("t", 1 << 31, 0, 1),
        FetchRequest("t", 0, 1 << 63, 1),
        FetchRequest("t", 0, 0, 1 << 31),
        FetchRequest("x" * 32768, 0, 0, 1),
        FetchRequest("\ud800", 0, 0, 1),
        OffsetsRequest("t", 0, 1 << 63, 1),
        ProduceRequest("t", 1 << 31, b""),
        MultiFetchRequest((FetchRequest("t", 0, 0, 1),) * 32768),
        MultiProduceRequest((ProduceRequest("t", 0, b""),) * 32768),
    ],
)
def test_rejects_values_that_do_not_fit(request_: Request) -> None:
    with pytest.raises(EncodeError):
        request_.encode()


def test_does_not_decode_a_long_invalid_topic_to_its_end() -> None:
    body = struct.pack(">hh", 1, 32000) + b"\xff" * 32000 + bytes(16)
    request = decode_request(body)
    assert isinstance(request, FetchRequest)
    assert len(request.topic) < 2000
    assert request.topic.endswith("\ufffd")


def kept(steps: Generator[None, None, Request], found: list[Request]) -> Generator[None, None, None]:
    """The steps; their result is added to `found`."""
    found.append((yield from steps))


def types_of_sets(request: Request) -> set[type]:
    entries = request.produces if isinstance(request, MultiProduceRequest) else (request,)
    return {type(entry.messages) for entry in entries if isinstance(entry, ProduceRequest)}


@pytest.mark.parametrize("count", [1, 1000, 32767])
def test_decodes_a_large_request_in_steps(count: int) -> None:
    request = MultiFetchRequest(tuple(FetchRequest("topic", number, number, 8) for number in range(count)))
    found: list[Request] = []
    assert len(list(kept(decode_request_steps(memoryview(request.encode())[4:]), found))) == (count - 1) // 512 + 1
    assert found == [request]


def test_ends_a_step_after_four_mebibytes_of_messages() -> None:
    """Beside the step that each request of several entries begins with."""
    size = (1 << 20) - 11  # one mebibyte with topic, partition and size
    for count, more, steps in ((5, 0, 1), (5, 1, 2), (6, 0, 2), (10, 0, 2), (11, 0, 3)):
        sizes = [size + more] + [size] * (count - 1)
        request = MultiProduceRequest(tuple(ProduceRequest("t", 0, bytes(size)) for size in sizes))
        assert sum(1 for _ in decode_request_steps(memoryview(request.encode())[4:])) == steps


@pytest.mark.parametrize("size", [1 << 16, (1 << 16) + 1])
def test_large_multi_request_is_not_copied(size: int) -> None:
    body = MultiFetchRequest((FetchRequest("t", 0, 0, 1),)).encode()[4:].ljust(size)
    tracemalloc.start()
    try:
        decode_request(memoryview(body))
        copied = tracemalloc.get_traced_memory()[1] > 1 << 16
    finally:
        tracemalloc.stop()
    assert copied is (size == 1 << 16)


@pytest.mark.parametrize("size", [1 << 16, (1 << 16) + 1])
def test_large_message_set_is_a_part_of_the_request_it_came_in(size: int) -> None:
    entry = ProduceRequest("t", 0, bytes(size))
    for request in (entry, MultiProduceRequest((entry, entry))):
        body = bytearray(request.encode()[4:])
        part: list[Request] = []
        list(kept(decode_request_steps(memoryview(body)), part))
        copy = decode_request(memoryview(body))
        assert part == [copy] == [request]
        assert types_of_sets(part[0]) == {memoryview if size > 1 << 16 else bytes}
        assert types_of_sets(copy) == {bytes}


def test_only_multi_requests_need_steps() -> None:
    fetch, produce, offsets = FetchRequest("t", 0, 0, 1), ProduceRequest("t", 0, b"m"), OffsetsRequest("t", 0, -1, 1)
    for request in (fetch, produce, offsets):
        assert decode_single_request(request.encode()[4:]) == request
    for multiple in (MultiFetchRequest((fetch,)), MultiProduceRequest((produce,))):
        assert decode_single_request(multiple.encode()[4:]) is None
    with pytest.raises(FrameError, match="request type 5 does not exist"):
        decode_single_request(b"\0\5")
    with pytest.raises(FrameError, match="a request of 1 bytes ends within a field"):
        decode_single_request(b"\0")


@pytest.mark.parametrize("size", [1024, 1025])
def test_shows_a_kibibyte_of_an_invalid_topic(size: int) -> None:
    """A mark at its end says that more came."""
    body = struct.pack(">hh", 1, size) + b"\xff" + b"x" * (size - 1) + bytes(16)
    request = decode_request(body)
    assert isinstance(request, FetchRequest)
    assert request.topic == "\ufffd" + "x" * 1023 + ("\ufffd" if size > 1024 else "")


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (FetchRequest("\ud800" * 30, 0, 0, 1), "cannot be sent: not UTF-8, or too long"),
        (FetchRequest("t", 1 << 31, 0, 1), "a number does not fit into a fetch request: 2147483648, 0, 1"),
        (ProduceRequest("t", -(1 << 31) - 1, b""), "does not fit into a produce request: -2147483649, 0"),
        (OffsetsRequest("t", 0, 1 << 63, 1), "does not fit into a offsets request: 0, 9223372036854775808, 1"),
        (MultiFetchRequest((FetchRequest("t", 0, 0, 1),) * 32768), "32768 entries are too many for one MULTIFETCH"),
    ],
)
def test_error_names_the_value_that_does_not_fit(request_: Request, message: str) -> None:
    with pytest.raises(EncodeError, match=message):
        request_.encode()


def test_encodes_a_produce_request_from_its_payloads(native_codec: native.NativeCodec) -> None:
    payloads = [b"hello", b""]
    messages = encode_message_set(payloads)
    with native.using(native_codec):
        found = EncodedProduceRequest.of("dogs", 2, payloads, 5, len(messages))
    assert found == EncodedProduceRequest("dogs", 2, ProduceRequest("dogs", 2, messages).encode())


@pytest.mark.parametrize(
    ("topic", "partition", "payloads", "largest", "most"),
    [
        ("t", 0, [b"hello"], 4, 99),
        ("t", 0, [b"hello"], 5, 14),
        ("t", 0, (b"hello",), 5, 99),
        ("t", 1 << 31, [b"hello"], 5, 99),
        ("\ud800", 0, [b"hello"], 5, 99),
        ("t" * 32768, 0, [b"hello"], 5, 99),
    ],
)
def test_leaves_other_produce_requests_to_the_pure_code(
    topic: str, partition: int, payloads: list[bytes], largest: int, most: int, native_codec: native.NativeCodec
) -> None:
    with native.using(native_codec):
        assert EncodedProduceRequest.of(topic, partition, payloads, largest, most) is None


def test_encodes_no_produce_request_from_payloads_without_the_native_codec() -> None:
    with native.using(None):
        assert EncodedProduceRequest.of("t", 0, [b"hello"], 5, 99) is None


class Long(bytes):
    """Claims to be longer than a frame can be."""

    def __len__(self) -> int:
        return 0x7FFFFFFF


def test_rejects_a_request_longer_than_a_frame() -> None:
    with pytest.raises(EncodeError, match="a PRODUCE request is too long for one frame"):
        _frame(RequestType.PRODUCE, Long())
