"""Which mutants of a former run are judged again."""

from __future__ import annotations

from tests.mutants.__main__ import read_named

OUTPUT = """\
3 mutants, 20 tests
survived: consumerd/net/zk/acl.py:40: constant changed
  - if scheme == "digest":
  + if scheme == "digesu":
timed out: consumerd/net/zk/session.py:12: condition holds
  - while self._open:
  + while True

survivors:
consumerd/net/zk/acl.py:40: constant changed
  - if scheme == "digest":
  + if scheme == "digesu":

3 mutants planted in 20 s: 1 killed, 1 timed out, 0 equivalent, 1 survived (33.3 %)
"""


def test_names_each_mutant_that_the_output_lists_by_its_file_and_text() -> None:
    assert read_named(OUTPUT) == {
        ("consumerd/net/zk/acl.py", 'if scheme == "digest":', 'if scheme == "digesu":'),
        ("consumerd/net/zk/session.py", "while self._open:", "while True"),
    }


def test_names_none_where_none_survived() -> None:
    assert read_named("2 mutants, 20 tests\n\n2 mutants planted in 9 s: 2 killed\n") == set()
