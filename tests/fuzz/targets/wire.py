"""The protocols of brokers: messages, requests, responses, the subscriptions of members, SCRAM, frames."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from consumerd.net.framing import FrameReceiver
from consumerd.wire import FrameError
from consumerd.wire.scram import ScramClient, ScramError
from consumerd.wire.v07 import (
    Codec,
    FetchRequest,
    MultiFetchRequest,
    MultiProduceRequest,
    OffsetsRequest,
    ProduceRequest,
    Request,
    encode_message_set,
)
from consumerd.wire.v08 import APIS
from consumerd.wire.v08.records import RecordCodec, encode_record_batch
from consumerd.wire.v08.records import encode_message_set as encode_message_set_v08
from consumerd.wire.v08.subscription import MemberAssignment, MemberMetadata, decode_assignment, decode_metadata
from tests.fuzz.laws_v07 import exercise_frames, exercise_message_set
from tests.fuzz.laws_v08 import LIMITS, START, exercise_records, exercise_request, exercise_response
from tests.fuzz.mending import changed_records, changed_set
from tests.fuzz.targets.bodies import request_frames, response_frames
from tests.fuzz.targets.target import Target
from tests.support.codecs import decode_records_by_both, installed_native_codec

# -- 0.7


def _sets_v07() -> dict[str, bytes]:
    found = {}
    for codec in Codec:
        name = codec.name.lower()
        found[f"{name}-small"] = encode_message_set([b"", b"one", b"two"], codec=codec)
        found[f"{name}-equal"] = encode_message_set([b"x" * 50] * 20, codec=codec)
    inner = encode_message_set([b"a", b"b"], codec=Codec.GZIP)
    found["gzip-in-snappy"] = _wrapped(inner, Codec.SNAPPY)
    found["magic-0"] = bytes.fromhex("00000008 00 8c736521") + b"foo"
    found["torn"] = encode_message_set([b"one", b"two"])[:-2]
    return found


def _wrapped(data: bytes, codec: Codec) -> bytes:
    from consumerd.wire import compress, crc32

    payload = compress(codec, data)
    return (len(payload) + 6).to_bytes(4) + bytes([1, codec]) + crc32(payload).to_bytes(4) + payload


def _frames_v07() -> dict[str, bytes]:
    messages = encode_message_set([b"one", b"two"])
    fetch = FetchRequest("events", 1, 1000, 1 << 20)
    produce = ProduceRequest("events", 0, messages)
    requests: dict[str, Request] = {
        "fetch": fetch,
        "multifetch": MultiFetchRequest((fetch, fetch)),
        "produce": produce,
        "multiproduce": MultiProduceRequest((produce, produce)),
        "offsets": OffsetsRequest("events", 0, -1, 10),
    }
    found = {name: request.encode()[4:] for name, request in requests.items()}
    found["fetch-response"] = bytes(2) + messages
    found["error-response"] = (1).to_bytes(2)
    found["multifetch-response"] = bytes(2) + ((len(messages) + 2).to_bytes(4) + bytes(2) + messages) * 3
    found["offsets-response"] = bytes(2) + (2).to_bytes(4) + (4096).to_bytes(8) + bytes(8)
    return found


# -- 0.8 and later


def _records_v08() -> dict[str, bytes]:
    values = [b"one", None, b"", b"x" * 70]
    keys = [b"k", None, b"", b"k" * 3]
    times = [1_700_000_000_000 + number for number in range(4)]
    found = {}
    for codec in RecordCodec:
        given: dict[str, Any] = {"codec": codec, "keys": keys, "timestamps": times, "base_offset": START}
        name = codec.name.lower()
        found[f"batch-{name}"] = encode_record_batch(values, **given, headers={0: (("name", b"value"), ("ä", None))})
        if codec is not RecordCodec.ZSTD:
            for magic in (0, 1):
                found[f"set-{name}-{magic}"] = encode_message_set_v08(values, magic=magic, **given)
    found["transactional"] = encode_record_batch(values, timestamps=times, base_offset=START, transactional=True)
    found["two-batches"] = found["batch-none"] + encode_record_batch(
        [b"next"] * 3, timestamps=times[:3], base_offset=START + 4
    )
    return found


def _check_records(data: bytes) -> None:
    exercise_records(data)
    if installed_native_codec() is not None:
        decode_records_by_both(data, START, limits=LIMITS, aborted=[(-1, START)])


def _check_request(data: bytes) -> None:
    key = int.from_bytes(data[:2])
    if key in APIS:
        exercise_request(key, data)


def _check_response(data: bytes) -> None:
    """The first byte is the API's key, the second one the version."""
    if len(data) < 2 or data[0] not in APIS:
        return
    low, high = APIS[data[0]].versions
    exercise_response(data[0], low + data[1] % (high - low + 1), data[2:])


# -- members and SCRAM


def _check_member(data: bytes) -> None:
    for decode in (decode_metadata, decode_assignment):
        with suppress(FrameError):
            found = decode(data)
            assert decode(found.encode()) == found


def _members() -> dict[str, bytes]:
    owned = (("events", (0, 2)), ("other", (1,)))
    found = {
        f"metadata-{version}": MemberMetadata(("events", "other"), b"data", version=version).encode()
        for version in (0, 1, 2)
    }
    found["metadata-3"] = MemberMetadata(("events",), None, owned, 7, "rack", version=3).encode()
    found["assignment"] = MemberAssignment(owned, b"data").encode()
    return found


def _check_scram(data: bytes) -> None:
    """The server's two messages, in one client. With few rounds, as their number is the server's to choose."""
    first, _, second = data.partition(b"\n")
    if b"i=" in first and b"i=4096" not in first:
        first = first.replace(b"i=4", b"i=9")  # a hundred thousand rounds would be all that is measured
        if any(len(part) > 6 for part in first.split(b",") if part.startswith(b"i=")):
            return
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    client.first()
    with suppress(ScramError):
        answer = client.respond(first)
        assert answer is not None
        assert answer.startswith(b"c=biws,r=rOprNGfwEbeRWgbNEkqO")
        assert client.respond(second) is None
        raise AssertionError("it takes a signature that no server without the password can make")


def _scrams() -> Mapping[str, bytes]:
    offer = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    return {
        "offer": offer + b"\nv=AAAA",
        "error": offer + b"\ne=unknown-user",
        "extension": b"m=x," + offer,
        "no-salt": b"r=rOprNGfwEbeRWgbNEkqOx,i=4096",
    }


def _check_framing(data: bytes) -> None:
    """Frames are the same, however the bytes arrive. The first byte: how many arrive at once."""

    def received(step: int) -> tuple[list[bytes], bool]:
        frames: list[bytes] = []
        receiver = FrameReceiver(admit, lambda frame: frames.append(bytes(frame)))
        rest = data[1:]
        try:
            while rest:
                free = receiver.free()
                count = min(step, len(free), len(rest))
                free[:count] = rest[:count]
                rest = rest[count:]
                receiver.received(count)
        except FrameError:
            return frames, True
        return frames, False

    def admit(size: int) -> None:
        if not 0 <= size <= 1 << 20:
            raise FrameError("size")

    whole = received(1 << 20)
    assert whole == received(1 + (data[0] if data else 0))


def _framings() -> Mapping[str, bytes]:
    frame = (3).to_bytes(4) + b"abc"
    return {"three": b"\2" + frame * 3, "negative": b"\0" + frame + b"\xff" * 4, "torn": b"\4" + frame * 2 + frame[:5]}


TARGETS: Final = (
    Target(
        "v07-messages",
        "Only verdicts come out, boundaries grow, and the pure and the native codec agree.",
        exercise_message_set, _sets_v07, changed_set,
    ),
    Target("v07-frames", "Requests and responses are read, or FrameError is raised.", exercise_frames, _frames_v07),
    Target(
        "v08-records",
        "Only verdicts come out, offsets grow, memory has its limit, and the pure and the native codec agree.",
        _check_records, _records_v08, changed_records,
    ),
    Target(
        "v08-requests",
        "What is read is read again from its encoding; else FrameError or UnsupportedVersionError is raised.",
        _check_request, request_frames,
    ),
    Target(
        "v08-responses",
        "What is read is read again from its encoding; else FrameError is raised.",
        _check_response, response_frames,
    ),
    Target("v08-members", "Metadata and assignments of members, or FrameError.", _check_member, _members),
    Target("scram", "Only ScramError is raised, and only a proof is believed.", _check_scram, _scrams),
    Target("framing", "Frames do not depend on how bytes arrive.", _check_framing, _framings),
)  # fmt: skip
