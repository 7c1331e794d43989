from __future__ import annotations

from collections.abc import Iterator

from consumerd.handlers.chunks import in_chunks


def pieces(items: list[bytes], count: int, size: int) -> list[list[bytes]]:
    return list(in_chunks(items, count, size, len))


def test_piece_ends_at_its_count_or_before_it_exceeds_its_size() -> None:
    assert pieces([b"a", b"b", b"c"], 2, 100) == [[b"a", b"b"], [b"c"]]
    assert pieces([b"aa", b"bb", b"c"], 100, 4) == [[b"aa", b"bb"], [b"c"]]
    assert pieces([b"aa", b"bb", b"c"], 100, 5) == [[b"aa", b"bb", b"c"]]


def test_item_larger_than_a_piece_is_a_piece_of_its_own() -> None:
    assert pieces([b"a", b"x" * 9, b"b"], 100, 4) == [[b"a"], [b"x" * 9], [b"b"]]


def test_counts_empty_items_and_makes_no_empty_piece() -> None:
    assert pieces([b""] * 5, 2, 1) == [[b"", b""], [b"", b""], [b""]]
    assert pieces([], 2, 1) == []


def test_takes_only_the_items_of_the_next_piece() -> None:
    taken = []

    def items() -> Iterator[bytes]:
        for number in range(100):
            taken.append(number)
            yield b"x"

    next(in_chunks(items(), 10, 100, len))
    assert len(taken) == 11  # the one that did not fit
