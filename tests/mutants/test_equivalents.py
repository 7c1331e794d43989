"""The list of equivalent mutants, and its entries."""

from __future__ import annotations

import pytest

from tests.mutants import equivalents
from tests.mutants.operators import Module
from tests.mutants.rooms import ROOT

ENTRY = "m.py A.f\n- a < b\n+ a <= b\nThey are never equal,\nbecause one is odd.\n"


def test_every_entry_is_a_mutant_of_the_source() -> None:
    entries = equivalents.load()
    known: set[equivalents.Equivalent] = set()
    for path in {entry.path for entry in entries}:
        module = Module((ROOT / path).read_text("utf-8"), path)
        known.update(map(equivalents.key, module.mutants))
    assert [entry for entry in entries if entry not in known] == []


def test_reads_place_lines_and_reason() -> None:
    (entry, reason), *others = equivalents.parse(f"# A comment.\n\n{ENTRY}").items()
    assert entry == ("m.py", "A.f", "a < b", "a <= b")
    assert reason == "They are never equal, because one is odd."
    assert others == []


def test_finds_a_mutant_by_its_entry_wherever_it_has_moved() -> None:
    (mutant, *_) = Module("# a\n\ndef f():\n    return 1 < 2", "m.py").mutants
    assert equivalents.key(mutant) == ("m.py", "f", "return 1 < 2", "return 1 <= 2")


@pytest.mark.parametrize(
    "text",
    ["m.py A.f\n- a\n+ b\n", "m.py\na\n+ b\nReason.\n", f"{ENTRY}\n{ENTRY}", ENTRY + ENTRY.replace("A.f", "B.g")],
)
def test_rejects_entries_that_are_incomplete_listed_twice_or_not_separated(text: str) -> None:
    with pytest.raises(ValueError, match="entry"):
        equivalents.parse(text)
