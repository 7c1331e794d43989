"""Lines are read the same however they are cut into pieces, and at once as one by one."""

from __future__ import annotations

import io
import json

from hypothesis import given
from hypothesis import strategies as st

from consumerd.spark.source.files.lines import ExpectedRange, LineRows, _Reader, read_rows

PLACE = ExpectedRange("t", 0, 1, 0, 1 << 40)


def record(number: int, payload: str) -> bytes:
    members = {"topic": "t", "broker": 0, "partition": 1, "offset": 10 * (number // 3), "index": number % 3}
    return json.dumps(members | {"payload": payload}, ensure_ascii=number % 2 == 0).encode() + b"\n"


def flat(pieces: list[LineRows]) -> list[tuple[object, ...]]:
    return [
        row
        for rows in pieces
        for row in zip(
            rows.offsets.to_pylist(),
            rows.indexes.to_pylist(),
            rows.values.to_pylist(),
            [None] * len(rows.offsets) if rows.problems is None else rows.problems.to_pylist(),
            strict=True,
        )
    ]


@given(payloads=st.lists(st.text(), max_size=12), piece=st.integers(1, 400), cut=st.integers(0, 3))
def test_reads_the_same_rows_with_any_piece_size(payloads: list[str], piece: int, cut: int) -> None:
    text = b"".join(record(number, payload) for number, payload in enumerate(payloads))
    text = text[: len(text) - cut]
    found = flat(list(read_rows(io.BytesIO(text), PLACE, piece=piece)))
    assert found == flat(list(read_rows(io.BytesIO(text), PLACE)))
    good = payloads if not cut else payloads[:-1]
    assert [row[2] for row in found[: len(good)]] == [payload.encode() for payload in good]
    assert [row[3] is None for row in found] == [True] * len(good) + [False] * (bool(cut) and bool(payloads))


@given(
    payloads=st.lists(st.text(), min_size=1, max_size=6),
    changes=st.lists(st.tuples(st.integers(0), st.sampled_from(b'\x00\n \\"{}0919,:xuetn\xff-.')), max_size=4),
)
def test_batched_and_single_line_parsing_agree(payloads: list[str], changes: list[tuple[int, int]]) -> None:
    text = bytearray(b"".join(record(number, payload) for number, payload in enumerate(payloads)))
    for position, byte in changes:
        text[position % len(text)] = byte
    lines = bytes(text[: text.rfind(b"\n") + 1])
    if not lines:
        return
    rows = _Reader(PLACE)._at_once(lines)
    if rows is not None:
        assert flat([rows]) == flat([_Reader(PLACE)._one_by_one(lines)])
    else:
        assert any(row[3] is not None for row in flat([_Reader(PLACE)._one_by_one(lines)]))


def test_an_oversized_line_is_one_row_and_reading_continues() -> None:
    text = record(0, "a") + b"x" * 5000 + b"\n" + record(3, "b") + b"y" * 3000
    too_long = "a line of {} bytes is longer than any message"
    assert flat(list(read_rows(io.BytesIO(text), PLACE, piece=100, max_line=1000))) == [
        (0, 0, b"a", None),
        (0, 1, None, too_long.format(5000)),
        (10, 0, b"b", None),
        (10, 1, None, too_long.format(3000)),
    ]
